#!/usr/bin/env python3
"""The Python package against a real server, for threads and for asyncio, in both encodings: answers, calls, choices, limits, cancelling, back-pressure, many streams at
once; and through the death of a rank and of the core, without a gap or a repeat. It installs, too."""
import asyncio
import json
import os
import pathlib
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import venv

from harness import PATIENCE, ROOT, TINY, Client as Plain, Server, ask, conversations, main, wait_for

sys.path.insert(0, str(ROOT / 'examples/python'))
try:
    from althing_client import (AlthingError, AsyncClient, Cancelled, Client, DeadlinePassed, InvalidArgument, Message, Sampling, SlowReader, Text, Tool, TooLarge,
                                Unavailable)
except ImportError:  # no pyzmq: harness.main says so
    pass
try:
    import capnp
except ImportError:
    capnp = None

PACKAGE = ROOT / 'examples/python/althing-client'
ENCODINGS = ('json', 'capnp') if capnp else ('json',)
LONG = {'completion_tokens_max': 300, 'ignore_stop': True}
STORY = 'Tell me a story.'


def sampled(seed):
    return {'sampling': {'temperature': 1.0, 'seed': seed, **LONG}, 'return_tokens': True}


def answers_are_those_of_the_reference():
    with Server() as server:
        for encoding in ENCODINGS:
            with Client(server.endpoint, encoding=encoding) as client:
                assert client.server.model == 'tiny'
                for case in [case for case in conversations(60) if case['completion_text'].endswith('|>')][:12]:
                    reply = client.ask(case['messages'], return_tokens=True)
                    assert reply.tokens == case['completion_ids'], case
                    assert reply.done.usage.completion_tokens == len(reply.tokens) and reply.accepted.prompt_tokens > 0
                assert client.ask('What is 12 + 30?').text.endswith('42.')


def a_tool_is_called_and_answered():
    weather = Tool('get_current_weather', 'Get the weather for a city.', {'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']})
    with Server() as server:
        for encoding in ENCODINGS:
            with Client(server.endpoint, encoding=encoding) as client:
                conversation = [Message('user', 'Weather in Liverpool?')]
                first = client.ask(conversation, tools=[weather], effort='low')
                call, = first.tool_calls
                assert call.name == 'get_current_weather' and call.parse() == {'city': 'Liverpool'}, call
                second = client.ask([*conversation, *first.messages, call.answer('{"temperature":14,"conditions":"cloudy"}')], tools=[weather], effort='low')
                assert not second.tool_calls and '14' in second.text, second


def a_call_goes_back_as_it_was_generated():
    """The model's own ids stand in the next prompt (their number says so); ids of another message, and ids that are no message, are refused by name."""
    weather = Tool('get_current_weather', 'Get the weather for a city.', {'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']})
    special = {token['content']: token['id'] for token in json.loads((TINY / 'tokenizer.json').read_text())['added_tokens']}
    stops = {special[name] for name in ('<|end|>', '<|call|>', '<|return|>')}
    with Server() as server:
        for encoding in ENCODINGS:
            with Client(server.endpoint, encoding=encoding) as client:
                question = [Message('user', 'Weather in Liverpool?')]

                def go_on(messages):
                    return client.ask([*question, *messages, first.tool_calls[0].answer('{"temperature":14,"conditions":"cloudy"}')], tools=[weather], effort='low')

                first = client.ask(question, tools=[weather], effort='low', return_tokens=True)
                mine = first.choices[0].replayed(stops)
                assert [message.tokens for message in mine] and sum((list(message.tokens) for message in mine), []) == first.tokens, mine
                second, encoded = go_on(mine), go_on(first.messages)
                assert '14' in second.text and not second.tool_calls, second
                # Prompt, generated ids, the call's result, the opening of the answer; the renderer's own header is as long, in another order.
                assert second.accepted.prompt_tokens == encoded.accepted.prompt_tokens > first.accepted.prompt_tokens + len(first.tokens)
                short = Message('assistant', 'Hm.', channel='analysis')
                for wrong, word in ((Message(**{**vars_of(mine[-1]), 'content': '{}'}), 'another text'), (Message(**{**vars_of(short), 'tokens': [1, 2, 3]}), 'up to the token'),
                                    (Message(**{**vars_of(mine[-1]), 'channel': 'final'}), 'channel')):
                    try:
                        go_on([*mine[:-1], wrong])
                        raise AssertionError(f'not refused: {wrong}')
                    except InvalidArgument as error:
                        assert error.field == f'messages[{len(mine)}].tokens' and word in error.message, error


def vars_of(message):
    return {name: getattr(message, name) for name in ('role', 'content', 'name', 'channel', 'recipient', 'content_type', 'tokens')}


def choices_and_token_prompts():
    with Server() as server:
        for encoding in ENCODINGS:
            with Client(server.endpoint, encoding=encoding) as client:
                three = client.ask(STORY, sampling=Sampling(temperature=1, seed=5, n=3, completion_tokens_max=40), return_tokens=True)
                one = client.ask(STORY, sampling=Sampling(temperature=1, seed=5, completion_tokens_max=40), return_tokens=True)
                assert len(three.choices) == 3 and three.choices[0].tokens == one.tokens and len(three.done.choices) == 3
                assert len({tuple(answer.tokens) for answer in three.choices}) == 3
                raw = client.ask([case['completion_ids'] for case in conversations(1)][0], sampling=Sampling(completion_tokens_max=8, ignore_stop=True))
                assert len(raw.tokens) == 8 and not raw.messages
                traced = client.ask('12 + 30', trace_top_m=2, sampling=Sampling(completion_tokens_max=3))
                assert traced.choices[0].routing and all(part['top_m'] == 2 for part in traced.choices[0].routing)


def what_is_told_of_tokens_and_ends_is_typed_in_both_encodings():
    with Server() as server:
        told = []
        for encoding in ENCODINGS:
            with Client(server.endpoint, encoding=encoding) as client:
                reply = client.ask(STORY, sampling=Sampling(temperature=1, seed=5, n=2, logprobs=2, completion_tokens_max=60), return_tokens=True)
                for answer in reply.choices:
                    assert [each.token for each in answer.logprobs] == answer.tokens and len(answer.tokens) > 5
                    assert all(len(each.top) == 2 and each.top[0].logprob >= each.top[1].logprob and each.logprob <= 0 for each in answer.logprobs)
                    assert not answer.extra, answer.extra
                assert 0 < reply.reasoning_tokens == reply.done.usage.reasoning_tokens < reply.done.usage.completion_tokens, reply.done.usage
                whole = client.ask('What is 12 + 30?')
                cut = client.ask('What is 12 + 30?', sampling=Sampling(stop=['no such text', '42']))
                assert (cut.stop_string(), whole.stop_string()) == (1, None) and '42' in whole.text and '42' not in cut.text, (cut.done, whole.done)
                told.append((reply.choices, reply.reasoning_tokens, cut.text))
        assert all(each == told[0] for each in told[1:]), [(reasoning, text) for _, reasoning, text in told]


def errors_have_their_class_and_field():
    def fails(kind, do):
        try:
            do()
        except kind as error:
            return error
        raise AssertionError(f'no {kind.__name__}')
    with Server() as server:
        for encoding in ENCODINGS:
            with Client(server.endpoint, encoding=encoding) as client:
                assert fails(InvalidArgument, lambda: client.ask('x', sampling=Sampling(top_p=1.5))).field == 'sampling.top_p'
                assert '2048' in fails(TooLarge, lambda: client.ask([1] * 3000)).message
                assert fails(TooLarge, lambda: client.ask('x' * (5 << 20))).request_id
                late = fails(DeadlinePassed, lambda: client.ask(STORY, timeout_s=0.3, sampling={'completion_tokens_max': 1900, 'ignore_stop': True}, return_tokens=True))
                assert late.reply.tokens, 'what had come before is not lost'
                assert client.ask('12 + 30').text
        endpoint = server.endpoint
    began = time.monotonic()
    error = fails(Unavailable, lambda: Client(endpoint, silence_s=1.0))
    assert endpoint in error.message and 0.9 < time.monotonic() - began < 1 + 3 * PATIENCE
    fails(InvalidArgument, lambda: Client('nowhere'))


def leaving_a_loop_cancels_the_request():
    def idle(server):
        wait_for('the request is cancelled and its pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
    endless = {'sampling': {'completion_tokens_max': 1900, 'ignore_stop': True}}
    with Server() as server, Client(server.endpoint) as client:
        for event in client.stream(STORY, **endless):
            if isinstance(event, Text):
                break
        idle(server)
        stream = client.stream(STORY, **endless)
        try:
            for event in stream:
                stream.cancel()
            raise AssertionError('it ended well')
        except Cancelled as error:
            assert error.reply is stream.reply
        with client.stream(STORY, **endless):
            pass
        idle(server)

        async def abandoned():
            async with AsyncClient(server.endpoint) as other:
                try:
                    await asyncio.wait_for(other.ask(STORY, **endless), 0.3)
                    raise AssertionError('it ended')
                except TimeoutError:
                    idle(server)
                async for event in other.stream(STORY, **endless):
                    if isinstance(event, Text):
                        break
                assert (await other.ask('12 + 30')).text
                idle(server)
        asyncio.run(abandoned())
        assert client.ask('12 + 30').text, 'the client is as good as new'


def who_reads_slowly_holds_nobody_up_and_loses_nothing():
    """One stream has a window of two and is not read; another is answered meanwhile; then the first is read to its end."""
    with Server() as server, Client(server.endpoint) as client:
        whole = client.ask(STORY, **sampled(3))
        slow = client.stream(STORY, credit=2, **sampled(3))
        assert client.ask(STORY, **sampled(3)).tokens == whole.tokens
        assert len(slow._inbox._items) <= 2, 'more lies here than the window'
        assert slow.read().tokens == whole.tokens
        starved = client.stream(STORY, credit=1, **sampled(4))
        wait_for('the server ends a stream that nobody reads', lambda: starved._inbox._items and isinstance(starved._inbox._items[-1], AlthingError), 45)
        try:
            starved.read()
            raise AssertionError('it ended well')
        except SlowReader as error:
            assert error.reply.tokens


def many_threads_share_a_client():
    cases = [case for case in conversations(40) if case['completion_text'].endswith('|>')][:16]
    with Server() as server, Client(server.endpoint) as client:
        heard = {}

        def work(number):
            heard[number] = client.ask(cases[number]['messages'], return_tokens=True).tokens
        threads = [threading.Thread(target=work, args=(number,)) for number in range(len(cases))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert heard == {number: case['completion_ids'] for number, case in enumerate(cases)}
        waiting = client.stream(STORY, **sampled(1))
        closer = threading.Thread(target=client.close)
        closer.start()
        try:
            waiting.read()
            raise AssertionError('it ended well')
        except AlthingError:
            closer.join()


def through(kill):
    """The same sampled streams twice, by a client of each kind and encoding at once; kill(server) happens in the middle of the second time."""
    async def asked(server, encoding):
        async with AsyncClient(server.endpoint, encoding=encoding) as client:
            return await asyncio.gather(*(client.ask(STORY, **sampled(seed)) for seed in range(3)))

    def run(server, disturb):
        replies = {}

        def in_thread(encoding, seed, client):
            replies['threads', encoding, seed] = client.ask(STORY, **sampled(seed))

        def in_loop(encoding):
            for seed, reply in enumerate(asyncio.run(asked(server, encoding))):
                replies['asyncio', encoding, seed] = reply
        clients = {encoding: Client(server.endpoint, encoding=encoding) for encoding in ENCODINGS}
        before = server.metric('althing_generation_tokens_total')
        workers = [threading.Thread(target=in_thread, args=(encoding, seed, clients[encoding])) for encoding in ENCODINGS for seed in range(3)]
        workers += [threading.Thread(target=in_loop, args=(encoding,)) for encoding in ENCODINGS]
        for worker in workers:
            worker.start()
        if disturb:
            wait_for('streams are in decode', lambda: server.metric('althing_generation_tokens_total') > before + 100, 30)
            disturb(server)
        for worker in workers:
            worker.join(120 * PATIENCE)
        for client in clients.values():
            client.close()
        assert len(replies) == 6 * len(ENCODINGS), sorted(replies)
        return {key: (reply.tokens, reply.text, reply.done.reason, reply.done.usage.completion_tokens) for key, reply in replies.items()}
    with Server() as server:
        whole = run(server, None)
        split = run(server, kill)
        assert split == whole
        assert all(len(tokens) == 300 for tokens, *_ in whole.values())


def a_rank_dies():
    def kill(server):
        epoch = server.epoch()
        os.kill(server.children()['rank1'], signal.SIGKILL)
        wait_for('a new membership', lambda: server.ready(epoch), 30)
    through(kill)


def the_core_dies():
    def kill(server):
        core = server.children()['core']
        os.kill(core, signal.SIGKILL)
        wait_for('another core', lambda: server.children().get('core') not in (None, core), 15)
        line = wait_for('its streams are taken over', lambda: next((line for line in server.log().splitlines() if 'core_recovered' in line), None), 15)
        assert 'streams=0' not in line, line
    through(kill)


def it_is_the_same_as_a_plain_client():
    with Server() as server, Plain(server.endpoint) as plain, Client(server.endpoint) as client:
        for number, case in enumerate(conversations(6)):
            ask(plain, f'{number}', case)
        plain.finish()
        for number, case in enumerate(conversations(6)):
            limit = {} if case['completion_text'].endswith('|>') else {'completion_tokens_max': len(case['completion_ids'])}
            reply = client.ask(case['messages'], sampling=limit, return_tokens=True)
            story = [[message.recipient or message.channel or '', message.content] for message in reply.messages]
            assert (reply.tokens, story) == (plain.streams[f'{number}'].tokens, [words[:2] for words in plain.streams[f'{number}'].story])


def it_installs():
    """Into an empty environment, with the setuptools and pyzmq of this one: nothing is downloaded."""
    with tempfile.TemporaryDirectory(prefix='althing-install-') as folder:
        venv.create(folder, with_pip=True, system_site_packages=True)
        python = pathlib.Path(folder) / 'bin/python'
        seen = {**os.environ, 'PYTHONPATH': os.pathsep.join(site.getsitepackages())}
        if subprocess.run([python, '-c', 'import setuptools as s; int(s.__version__.split(".")[0]) >= 71 or __import__("wheel")'], env=seen, capture_output=True).returncode:
            raise unittest.SkipTest('no setuptools that can make wheels (pip install setuptools)')
        shutil.copytree(PACKAGE, pathlib.Path(folder) / 'package')  # a build leaves files in its source
        install = subprocess.run([python, '-m', 'pip', 'install', '-q', '--no-index', '--no-build-isolation', '--no-deps', pathlib.Path(folder) / 'package'],
                                 capture_output=True, text=True, env=seen)
        assert install.returncode == 0, install.stderr[-2000:]
        where = subprocess.run([python, '-c', 'import althing_client, pathlib; at = pathlib.Path(althing_client.__file__).parent; '
                                'print(at, (at / "py.typed").exists(), (at / "wire.capnp").read_bytes()[:2] == b"# ")'],
                               capture_output=True, text=True, cwd=folder, check=True, env=seen)
        assert where.stdout.startswith(str(python.parents[1] / 'lib')) and where.stdout.split()[1:] == ['True', 'True'], where


if __name__ == '__main__':
    assert TINY.exists()
    main(answers_are_those_of_the_reference, a_tool_is_called_and_answered, a_call_goes_back_as_it_was_generated, choices_and_token_prompts, what_is_told_of_tokens_and_ends_is_typed_in_both_encodings, errors_have_their_class_and_field,
         leaving_a_loop_cancels_the_request, who_reads_slowly_holds_nobody_up_and_loses_nothing, many_threads_share_a_client, a_rank_dies, the_core_dies,
         it_is_the_same_as_a_plain_client, it_installs)
