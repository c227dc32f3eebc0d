#!/usr/bin/env python3
"""Asks an Althing server one question and prints several answers to it, each with how it ended: one request, one stream, n choices.

    choices.py [--endpoint tcp://127.0.0.1:4550] [-n 3] [--temperature 1.0] [--seed 7] Tell me a story.
"""
import argparse
import sys

from session import ServerError, Session, collect_choices


def main():
    parser = argparse.ArgumentParser(description='Ask an Althing server one question and get several answers.')
    parser.add_argument('--endpoint', default='tcp://127.0.0.1:4550')
    parser.add_argument('-n', '--choices', type=int, default=3)
    parser.add_argument('--temperature', type=float, default=1.0)
    parser.add_argument('--seed', type=int, help='choice c of a seed is the same however many choices are asked for')
    parser.add_argument('--max-tokens', type=int, help='at most this many generated tokens of each')
    parser.add_argument('prompt', nargs='+')
    options = parser.parse_args()

    sampling = {'n': options.choices, 'temperature': options.temperature, 'seed': options.seed, 'completion_tokens_max': options.max_tokens}
    session = Session(options.endpoint, 'althing-choices.py/0.1')
    session.submit('choices', [{'role': 'user', 'content': ' '.join(options.prompt)}], reasoning_effort='low', sampling=sampling)
    answers, done = collect_choices(session.answer('choices'))
    # A request of one has no list of choices: what it says about the whole is about that one.
    ends = done.get('choices') or [{'reason': done['reason'], **done['usage']}]
    for choice, end in enumerate(ends):
        final = ''.join(message['content'] for message in answers.get(choice, []) if message.get('channel') == 'final')
        print(f'[{choice}: {end["reason"]}, {end["completion_tokens"]} tokens] {final}')
        if 'error' in end:
            print(f'choice {choice}: {end["error"]["code"]}: {end["error"]["message"]}', file=sys.stderr)
    print(f'{done["usage"]["completion_tokens"]} tokens in all', file=sys.stderr)


if __name__ == '__main__':
    try:
        main()
    except ServerError as error:
        sys.exit(f'choices.py: {error}')
    except KeyboardInterrupt:
        sys.exit(130)
