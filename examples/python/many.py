#!/usr/bin/env python3
"""Many chats at once over one or several sockets; prints one JSON line per request when it ends, and exits with 1 when any of them failed.

    many.py [--endpoint …] [--sockets 4] [--requests 100] [--input prompts.jsonl] [--max-tokens 64] [12 + 30]

A line of the input is a JSON object with the members of a submit (docs/protocol.md) beside type and request_id; without an input every request asks the
prompt. An output line is {"request": number, "messages": […], "reason": …, "usage": {…}, "tokens": […], "first_ms": …, "total_ms": …} or
{"request": number, "error": {"code": …, "message": …}, …}; numbers count input lines from 0, and the order is that of ending. With `n` in the sampling of an input
line, "messages" and "tokens" are choice 0's and "choices" has those of all. "layout_changed" is there when the server lost or regained ranks on the way.
"""
import argparse
import json
import sys
import threading
import time

from session import ServerError, Session, collect_choices


def stream(session, first, step, submits, report):
    """Sends every step-th submit and follows all of them to their ends."""
    started, events, tokens, first_at = {}, {}, {}, {}
    for number in range(first, len(submits), step):
        key = f'many-{number}'
        started[key], events[key], tokens[key] = time.monotonic(), [], {}
        session.submit(key, **{'messages': [], **submits[number]})

    def close(key, **members):
        now, begun = time.monotonic(), started.pop(key)
        messages, _ = collect_choices(events[key])
        choices = [{'messages': messages.get(choice, []), 'tokens': tokens[key].get(choice, [])} for choice in range(max({0, *messages, *tokens[key]}) + 1)]
        report({'request': int(key[5:]), **choices[0], **({'choices': choices} if len(choices) > 1 else {}), **members,
                'first_ms': round(1000 * (first_at.get(key, now) - begun), 1), 'total_ms': round(1000 * (now - begun), 1)})

    source = session.messages()
    while started:
        try:
            message = next(source)
        except ServerError as error:
            for key in list(started):
                close(key, error={'code': error.code, 'message': error.message})
            return
        key = message.get('request_id')
        if key not in started or message['type'] == 'accepted':
            continue
        if message['type'] == 'delta':
            first_at.setdefault(key, time.monotonic())
            choice = message.get('choice', 0)
            events[key] += [{**event, 'choice': choice} for event in message['events']]
            tokens[key].setdefault(choice, []).extend(message['tokens'])
        elif message['type'] == 'done':
            close(key, reason=message['reason'], usage=message['usage'], **({'layout_changed': True} if message.get('layout_changed') else {}))
        elif message['type'] == 'error':
            close(key, error=message['error'])


def main():
    parser = argparse.ArgumentParser(description='Run many chats at once against an Althing server.')
    parser.add_argument('--endpoint', default='tcp://127.0.0.1:4550')
    parser.add_argument('--sockets', type=int, default=1)
    parser.add_argument('--requests', type=int, help='how many; an input is repeated or cut (default: the input once, or 16)')
    parser.add_argument('--input', help='JSON lines, - for standard input')
    parser.add_argument('--max-tokens', type=int)
    parser.add_argument('--temperature', type=float, default=0.0)
    parser.add_argument('--return-tokens', action='store_true')
    parser.add_argument('prompt', nargs='*', default=['12 + 30'])
    options = parser.parse_args()

    if options.input:
        with sys.stdin if options.input == '-' else open(options.input, encoding='utf-8') as lines:
            submits = [json.loads(line) for line in lines if line.strip()]
    else:
        submits = [{'messages': [{'role': 'user', 'content': ' '.join(options.prompt)}]}]
    if not submits:
        sys.exit('many.py: the input is empty')
    count = options.requests or (len(submits) if options.input else 16)
    defaults = {'sampling': {'temperature': options.temperature, 'completion_tokens_max': options.max_tokens}, 'return_tokens': options.return_tokens}
    submits = [{**defaults, **submits[number % len(submits)]} for number in range(count)]

    ended_well, lock = [], threading.Lock()

    def report(line):
        with lock:
            ended_well.extend([] if 'error' in line else [line['request']])
            print(json.dumps(line, ensure_ascii=False), flush=True)

    sessions = [Session(options.endpoint, f'althing-many.py/{number}') for number in range(options.sockets)]
    threads = [threading.Thread(target=stream, args=(session, number, len(sessions), submits, report)) for number, session in enumerate(sessions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f'{len(ended_well)} of {count} requests ended well', file=sys.stderr)
    return 0 if len(ended_well) == count else 1


if __name__ == '__main__':
    try:
        sys.exit(main())
    except ServerError as error:
        sys.exit(f'many.py: {error}')
    except KeyboardInterrupt:
        sys.exit(130)
