#!/usr/bin/env python3
"""Asks an Althing server one question and prints the answer as it comes: reasoning dim, calls and commentary plain, the final answer bold.

    chat.py [--endpoint tcp://127.0.0.1:4550] [--effort low|medium|high] 12 + 30
"""
import argparse
import os
import sys

from althing_client import AlthingError, Client, MessageEnded, MessageStarted, Sampling, Text
from server_options import add_server_options, curve_of

STYLES = {'analysis': '\033[2m', 'commentary': '\033[36m', 'final': '\033[1m'}


def main():
    parser = argparse.ArgumentParser(description='Ask an Althing server one question.')
    add_server_options(parser)
    parser.add_argument('--encoding', choices=['json', 'capnp'], default='json', help='capnp needs pycapnp')
    parser.add_argument('--effort', choices=['low', 'medium', 'high'])
    parser.add_argument('--temperature', type=float, default=0.0)
    parser.add_argument('--max-tokens', type=int, help='at most this many generated tokens')
    parser.add_argument('--tenant', default='', help="whose request it is, for the server's accounting")
    parser.add_argument('prompt', nargs='+')
    options = parser.parse_args()

    colour = sys.stdout.isatty() and 'NO_COLOR' not in os.environ
    sampling = Sampling(temperature=options.temperature, completion_tokens_max=options.max_tokens)
    with Client(options.endpoint, curve=curve_of(options), encoding=options.encoding, name='althing-chat.py/0.1') as client:
        stream = client.stream(' '.join(options.prompt), effort=options.effort, sampling=sampling, tenant=options.tenant)
        for event in stream:
            match event:
                case MessageStarted(channel=channel, recipient=recipient):
                    # Without a terminal only the final answer is told apart: everything else gets its channel in front.
                    label = channel + (' to=' + recipient if recipient else '')
                    print(STYLES.get(channel, '') if colour else '' if channel == 'final' else f'[{label}] ', end='')
                case Text(text=text):
                    print(text, end='', flush=True)
                case MessageEnded():
                    print('\033[0m' if colour else '')
    if stream.done.reason != 'stop':
        print(f'(ended: {stream.done.reason} after {stream.done.usage.completion_tokens} tokens)', file=sys.stderr)
    if stream.done.layout_changed:
        print('(the server lost or regained ranks on the way; asked again, it may answer otherwise)', file=sys.stderr)


if __name__ == '__main__':
    try:
        main()
    except (AlthingError, ImportError) as error:
        sys.exit(f'\nchat.py: {error}')
    except KeyboardInterrupt:
        sys.exit(130)
