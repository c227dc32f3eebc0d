#!/usr/bin/env python3
"""Asks an Althing server one question and prints the answer as it comes: reasoning dim, calls and commentary plain, the final answer bold.

    chat.py [--endpoint tcp://127.0.0.1:4550] [--effort low|medium|high] 12 + 30
"""
import argparse
import os
import sys

from session import ServerError, Session

STYLES = {'analysis': '\033[2m', 'commentary': '\033[36m', 'final': '\033[1m'}


def main():
    parser = argparse.ArgumentParser(description='Ask an Althing server one question.')
    parser.add_argument('--endpoint', default='tcp://127.0.0.1:4550')
    parser.add_argument('--effort', choices=['low', 'medium', 'high'])
    parser.add_argument('--temperature', type=float, default=0.0)
    parser.add_argument('--max-tokens', type=int, help='at most this many generated tokens')
    parser.add_argument('--tenant', default='', help="whose request it is, for the server's accounting")
    parser.add_argument('prompt', nargs='+')
    options = parser.parse_args()

    colour = sys.stdout.isatty() and 'NO_COLOR' not in os.environ
    sampling = {'temperature': options.temperature, 'completion_tokens_max': options.max_tokens}
    question = {'role': 'user', 'content': ' '.join(options.prompt)}

    session = Session(options.endpoint, 'althing-chat.py/0.1')
    session.submit('chat', [question], reasoning_effort=options.effort, sampling=sampling, tenant=options.tenant)
    for event in session.answer('chat'):
        if event['type'] == 'message_started':
            # Without a terminal only the final answer is told apart: everything else gets its channel in front.
            label = event['channel'] + (' to=' + event['recipient'] if event['recipient'] else '')
            print(STYLES.get(event['channel'], '') if colour else '' if event['channel'] == 'final' else f'[{label}] ', end='')
        elif event['type'] == 'text':
            print(event['text'], end='', flush=True)
        elif event['type'] == 'message_ended':
            print('\033[0m' if colour else '')
        else:
            if event['reason'] != 'stop':
                print(f'(ended: {event["reason"]} after {event["usage"]["completion_tokens"]} tokens)', file=sys.stderr)
            if event.get('layout_changed'):
                print('(the server lost or regained ranks on the way; asked again, it may answer otherwise)', file=sys.stderr)


if __name__ == '__main__':
    try:
        main()
    except ServerError as error:
        sys.exit(f'\nchat.py: {error}')
    except KeyboardInterrupt:
        sys.exit(130)
