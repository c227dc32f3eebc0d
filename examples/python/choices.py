#!/usr/bin/env python3
"""Asks an Althing server one question and prints several answers to it, each with how it ended: one request, one stream, n choices.

    choices.py [--endpoint tcp://127.0.0.1:4550] [-n 3] [--temperature 1.0] [--seed 7] Tell me a story.
"""
import argparse
import sys

from althing_client import AlthingError, ChoiceEnd, Client, Sampling
from server_options import add_server_options, curve_of


def main():
    parser = argparse.ArgumentParser(description='Ask an Althing server one question and get several answers.')
    add_server_options(parser)
    parser.add_argument('-n', '--choices', type=int, default=3)
    parser.add_argument('--temperature', type=float, default=1.0)
    parser.add_argument('--seed', type=int, help='choice c of a seed is the same however many choices are asked for')
    parser.add_argument('--max-tokens', type=int, help='at most this many generated tokens of each')
    parser.add_argument('prompt', nargs='+')
    options = parser.parse_args()

    sampling = Sampling(n=options.choices, temperature=options.temperature, seed=options.seed, completion_tokens_max=options.max_tokens)
    with Client(options.endpoint, curve=curve_of(options), name='althing-choices.py/0.1') as client:
        reply = client.ask(' '.join(options.prompt), effort='low', sampling=sampling)
    usage = reply.done.usage
    # A request of one has no list of choices: what it says about the whole is about that one.
    ends = reply.done.choices or [ChoiceEnd(reply.done.reason, usage.completion_tokens, usage.preemptions)]
    for choice, (answer, end) in enumerate(zip(reply.choices, ends, strict=True)):
        print(f'[{choice}: {end.reason}, {end.completion_tokens} tokens] {answer.text}')
        if end.error:
            print(f'choice {choice}: {end.error}', file=sys.stderr)
    print(f'{usage.completion_tokens} tokens in all', file=sys.stderr)


if __name__ == '__main__':
    try:
        main()
    except AlthingError as error:
        sys.exit(f'choices.py: {error}')
    except KeyboardInterrupt:
        sys.exit(130)
