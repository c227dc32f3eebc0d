#!/usr/bin/env python3
"""Many chats at once over one or several sockets; prints one JSON line per request when it ends, and exits with 1 when any of them failed.

    many.py [--endpoint …] [--sockets 4] [--requests 100] [--input prompts.jsonl] [--max-tokens 64] [12 + 30]

A line of the input is a JSON object with the members of a submit (docs/protocol.md) beside type and request_id; without an input every request asks the
prompt. An output line is {"request": number, "messages": […], "reason": …, "usage": {…}, "tokens": […], "first_ms": …, "total_ms": …} or
{"request": number, "error": {"code": …, "message": …}, …}; numbers count input lines from 0, and the order is that of ending. With `n` in the sampling of an input
line, "messages" and "tokens" are choice 0's and "choices" has those of all. "layout_changed" is there when the server lost or regained ranks on the way.
"""
import argparse
import asyncio
import contextlib
import json
import sys
import time

from althing_client import AlthingError, AsyncClient
from server_options import add_server_options, curve_of


def wire(answer):
    return {'messages': [message.to_wire() for message in answer.messages], 'tokens': answer.tokens}


async def run(client, number, submit, report):
    """One request from its submit to its line."""
    begun = time.monotonic()
    submit = dict(submit)
    prompt, sampling = submit.pop('prompt_tokens', None) or submit.pop('messages', []), submit.pop('sampling', {})
    members = {'sampling': sampling, 'return_tokens': submit.pop('return_tokens', False), 'credit': submit.pop('credit', 0), 'more': submit}
    first, end, reply = None, {}, None
    try:
        stream = client.stream(prompt, request_id=f'many-{number}', **members)
        async for _ in stream:
            first = first or time.monotonic()
        done, reply = stream.done, stream.reply
        usage = {name: getattr(done.usage, name) for name in ('prompt_tokens', 'completion_tokens', 'preemptions')}
        end = {'reason': done.reason, 'usage': usage, **({'layout_changed': True} if done.layout_changed else {})}
    except AlthingError as error:
        end, reply = {'error': {'code': error.code, 'message': error.message, 'field': error.field}}, error.reply
    choices = [wire(answer) for answer in reply.choices] if reply else [{'messages': [], 'tokens': []}]
    now = time.monotonic()
    report({'request': number, **choices[0], **({'choices': choices} if len(choices) > 1 else {}), **end,
            'first_ms': round(1000 * ((first or now) - begun), 1), 'total_ms': round(1000 * (now - begun), 1)})


async def run_all(options, submits, report):
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(options.endpoint, curve=curve_of(options), name=f'althing-many.py/{number}'))
                   for number in range(options.sockets)]
        await asyncio.gather(*(run(clients[number % options.sockets], number, submit, report) for number, submit in enumerate(submits)))


def main():
    parser = argparse.ArgumentParser(description='Run many chats at once against an Althing server.')
    add_server_options(parser)
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

    ended_well = []

    def report(line):
        ended_well.extend([] if 'error' in line else [line['request']])
        print(json.dumps(line, ensure_ascii=False), flush=True)

    asyncio.run(run_all(options, submits, report))
    print(f'{len(ended_well)} of {count} requests ended well', file=sys.stderr)
    return 0 if len(ended_well) == count else 1


if __name__ == '__main__':
    try:
        sys.exit(main())
    except AlthingError as error:
        sys.exit(f'many.py: {error}')
    except KeyboardInterrupt:
        sys.exit(130)
