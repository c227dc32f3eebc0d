#!/usr/bin/env python3
"""The Python client package as a client under test: docs/conformance.md has the contract.

    python_client.py [--async]
"""
import asyncio
import concurrent.futures
import json
import pathlib
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / 'examples/python'))
from althing_client import (AlthingError, AsyncClient, Client, MessageEnded, MessageStarted, Text, Tokens)  # noqa: E402

USAGE = ('prompt_tokens', 'completion_tokens', 'preemptions')
lock = threading.Lock()


def write(event, request_id, **members):
    with lock:
        print(json.dumps({'event': event, 'request_id': request_id, **members}), flush=True)


def write_event(request_id, event):
    members = {name: getattr(event, name) for name in event.__dataclass_fields__ if name != 'ids'}
    names = {MessageStarted: 'message_started', Text: 'text', MessageEnded: 'message_ended'}
    if isinstance(event, Tokens):
        write('tokens', request_id, **members, tokens=list(event.ids))
    elif type(event) in names:  # the kit does not ask for others
        write(names[type(event)], request_id, **members)


def write_error(request_id, error):
    write('error', request_id, code=error.code, message=error.message, field=error.field)


def write_done(request_id, done):
    write('done', request_id, reason=done.reason, usage={name: getattr(done.usage, name) for name in USAGE},
          choices=[{'reason': end.reason, 'completion_tokens': end.completion_tokens} for end in done.choices])


class Teller:
    """Writes what one stream says; `cancel_after` texts it cancels."""

    def __init__(self, request):
        self.request_id, self.cancel_after, self.texts, self.told = request['request_id'], request.get('cancel_after'), 0, False

    def accepted(self, stream):
        if stream.accepted and not self.told:
            self.told = True
            write('accepted', self.request_id, prompt_tokens=stream.accepted.prompt_tokens, seed=str(stream.accepted.seed))

    def event(self, stream, event):
        self.accepted(stream)
        write_event(self.request_id, event)
        self.texts += isinstance(event, Text)
        if self.texts == self.cancel_after:
            self.cancel_after = None
            stream.cancel()


def members_of(request):
    submit = dict(request['submit'])
    return {'prompt': submit.pop('messages', None) or submit.pop('prompt_tokens'), 'request_id': request['request_id'], 'sampling': submit.pop('sampling', None),
            'credit': submit.pop('credit', 0), 'more': submit}


def follow(client, request, step):
    teller = Teller(request)
    try:
        stream = client.stream(**members_of(request))
        for event in stream:
            teller.event(stream, event)
            if step:
                sys.stdin.readline()
        teller.accepted(stream)
        write_done(teller.request_id, stream.done)
    except AlthingError as error:
        write_error(teller.request_id, error)


def run(options):
    try:
        client = Client(options['endpoint'], encoding=options['encoding'], silence_s=options['silence_ms'] / 1000)
    except AlthingError as error:
        return write_error('', error)
    with client:
        with concurrent.futures.ThreadPoolExecutor(len(options['requests'])) as pool:
            for followed in [pool.submit(follow, client, request, options['step']) for request in options['requests']]:
                followed.result()


async def follow_async(client, request, step):
    teller = Teller(request)
    try:
        stream = client.stream(**members_of(request))
        async for event in stream:
            teller.event(stream, event)
            if step:
                await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
        teller.accepted(stream)
        write_done(teller.request_id, stream.done)
    except AlthingError as error:
        write_error(teller.request_id, error)


async def run_async(options):
    try:
        async with AsyncClient(options['endpoint'], encoding=options['encoding'], silence_s=options['silence_ms'] / 1000) as client:
            await asyncio.gather(*(follow_async(client, request, options['step']) for request in options['requests']))
    except AlthingError as error:
        write_error('', error)


if __name__ == '__main__':
    options = json.loads(sys.stdin.readline())
    if '--async' in sys.argv:
        asyncio.run(run_async(options))
    else:
        run(options)
