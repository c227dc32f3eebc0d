#!/usr/bin/env python3
"""Many streams of one server at once, each equal to the same request alone: no token wrong, none lost, none doubled; also when a rank is killed in their midst.

    python3 tests/gpu/serve_streams.py [--streams 256] [--ranks 1] [--kill-rank [R]] [MODEL] [-- FLAGS OF ALTHING SERVE]

By default the tiny model on the CPU. On a GPU: `… MODEL -- --device cuda`, or without a checkpoint `… -- --load dummy:20b --tokenizer tests/data --device cuda`.
Requests are conversations and raw token ids of mixed lengths, greedy and sampled with seeds. Each stream is a case. With --kill-rank all run a second
time, and the rank's process is killed while at least a quarter of them are unfinished on the server; that it died, and nobody else, is a case of its own. What the comparison must
notice (a wrong token, a lost one, a delta twice, a gap, another end) is tried on copies of real streams first.
The program under test is $ALTHING_BINARY, or build/release/althing.
"""
import argparse
import copy
import os
import pathlib
import random
import re
import signal
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'end_to_end'))
import harness  # noqa: E402
from harness import PATIENCE, TINY, Client, Server, Stream, alive, conversations, wait_for  # noqa: E402

STREAMS_OF_A_CLIENT = 64
PING_EVERY_SECONDS = 2.0


class Verdict:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0

    def case(self, name, why=''):
        """Passes when there is nothing to say against it."""
        if why:
            self.failed += 1
            print(f'FAILED {name}: {why}', flush=True)
        else:
            self.passed += 1

    def close(self):
        print(f'{self.passed} passed, {self.failed} failed, {self.skipped} skipped')
        return 1 if self.failed else 0


class CheckedStream(Stream):
    """A stream that remembers what was wrong with its numbers instead of ending the run."""

    def __init__(self):
        super().__init__()
        self.wrong, self.messages = [], []

    def hear(self, message):
        self.messages.append(message)
        try:
            super().hear(message)
        except AssertionError as error:
            self.wrong.append(str(error))

    @staticmethod
    def replayed(messages):
        stream = CheckedStream()
        for message in messages:
            stream.hear(message)
        return stream


def difference(stream, alone):
    """What is wrong with a stream, given the same request's lone run; empty when nothing is."""
    if stream.wrong:
        return '; '.join(stream.wrong)
    if stream.end is None:
        return f'no end; {len(stream.tokens)} of {len(alone.tokens)} tokens'
    if stream.end['type'] != 'done':
        return f'ended with {stream.end}'
    if stream.tokens != alone.tokens:
        at = next((i for i, pair in enumerate(zip(stream.tokens, alone.tokens)) if pair[0] != pair[1]), min(len(stream.tokens), len(alone.tokens)))
        return f'token {at}: {stream.tokens[at:at + 5]} instead of {alone.tokens[at:at + 5]} ({len(stream.tokens)} tokens, alone {len(alone.tokens)})'
    if stream.text != alone.text:
        return f'the text is {stream.text}, alone {alone.text}'
    counts = [end['usage']['completion_tokens'] for end in (stream.end, alone.end)]
    if counts[0] != counts[1] or counts[0] != len(stream.tokens):
        return f'usage says {counts[0]} tokens, alone {counts[1]}, and {len(stream.tokens)} came'
    ends = [{key: value for key, value in end.items() if key not in ('request_id', 'sequence', 'usage')} for end in (stream.end, alone.end)]
    return '' if ends[0] == ends[1] else f'ended with {ends[0]}, alone {ends[1]}'


def notices_what_is_wrong(verdict, alone):
    """The comparison against copies of a real stream, each with one thing wrong."""
    messages = [message for message in alone.messages if message['type'] != 'accepted']
    deltas = [i for i, message in enumerate(messages) if message['type'] == 'delta' and message['tokens']]
    middle = deltas[len(deltas) // 2]

    def changed(change):
        changing = copy.deepcopy(messages)
        change(changing)
        return CheckedStream.replayed(changing)

    def wrong_token(all_):
        all_[middle]['tokens'][0] += 1

    def wrong_end(all_):
        all_[-1]['reason'] = 'length' if all_[-1]['reason'] == 'stop' else 'stop'

    tries = {'a wrong token': wrong_token, 'a lost token': lambda all_: all_[middle]['tokens'].pop(), 'a delta twice': lambda all_: all_.insert(middle, all_[middle]),
             'a lost delta': lambda all_: all_.pop(middle), 'no end': lambda all_: all_.pop(), 'another end': wrong_end}
    verdict.case('control, nothing wrong', difference(CheckedStream.replayed(messages), alone))
    for name, change in tries.items():
        verdict.case(f'control, {name}', '' if difference(changed(change), alone) else 'it was not noticed')


def make_requests(options):
    """Members of submit, the same for the same options."""
    source = random.Random(options.seed)
    talks = conversations(64)
    requests = []
    for number in range(options.streams):
        sampling = {'completion_tokens_max': source.randint(options.tokens // 4, options.tokens)}
        if number % 2:
            sampling |= {'temperature': source.choice([0.5, 0.8, 1.0, 1.2]), 'top_p': source.choice([0.9, 1.0]), 'top_k': source.choice([0, 40]), 'seed': number}
        else:
            sampling['temperature'] = 0
        if number % 4 < 2:
            # Lengths from 1 to the most, short ones as often as long ones.
            length = max(1, int(options.prompt ** source.random()))
            requests.append({'prompt_tokens': [source.randrange(options.ids_below) for _ in range(length)], 'sampling': sampling | {'ignore_stop': True}})
        else:
            requests.append({'messages': source.choice(talks)['messages'], 'sampling': sampling})
    return requests


class Crowd:
    """Clients that share the streams, heard in turns."""

    def __init__(self, server, requests):
        self.zmq = harness.zmq
        self.poller = self.zmq.Poller()
        self.clients, self.streams = [], []
        for first in range(0, len(requests), STREAMS_OF_A_CLIENT):
            client = Client(server.endpoint)
            self.clients.append(client)
            self.poller.register(client.socket, self.zmq.POLLIN)
        for number, members in enumerate(requests):
            client = self.clients[number // STREAMS_OF_A_CLIENT]
            client.submit(f'{number}', **members)
            client.streams[f'{number}'] = CheckedStream()
            self.streams.append(client.streams[f'{number}'])
        self.pinged = time.monotonic()

    def open(self):
        return sum(stream.end is None for stream in self.streams)

    def tokens(self):
        return sum(len(stream.tokens) for stream in self.streams)

    def step(self):
        ready = dict(self.poller.poll(200))
        for client in self.clients:
            # Many at once, so that what was heard stays close to what was sent; but nobody waits long for a turn.
            for _ in range(200 if client.socket in ready else 0):
                if not client.socket.poll(0):
                    break
                client.step(0)
        if time.monotonic() - self.pinged > PING_EVERY_SECONDS:
            self.pinged = time.monotonic()
            for client in self.clients:
                client.send('ping', nonce=1)

    def finish(self, seconds):
        deadline = time.monotonic() + seconds * PATIENCE
        while self.open() and time.monotonic() < deadline:
            self.step()

    def close(self):
        for client in self.clients:
            client.close()


def run_alone(server, requests, seconds):
    streams = []
    for first in range(0, len(requests), STREAMS_OF_A_CLIENT):
        with Client(server.endpoint) as client:
            for number, members in enumerate(requests[first:first + STREAMS_OF_A_CLIENT], first):
                client.submit(f'{number}', **members)
                client.streams[f'{number}'] = CheckedStream()
                client.finish(seconds)
                streams.append(client.streams[f'{number}'])
    return streams


def judge(verdict, title, crowd, alone):
    for number, (stream, lone) in enumerate(zip(crowd.streams, alone)):
        verdict.case(f'{title}, stream {number}', difference(stream, lone))


def kill_in_the_midst(server, crowd, rank, seconds):
    """Kills the rank when an eighth of all tokens are there. What is wrong with the proof, or nothing."""
    expected = crowd.expected_tokens
    deadline = time.monotonic() + seconds * PATIENCE
    while crowd.tokens() < expected / 8:
        if time.monotonic() > deadline:
            return f'only {crowd.tokens()} of {expected} tokens after {seconds} s'
        crowd.step()
    before, epoch, tokens = server.children(), server.epoch(), crowd.tokens()
    role = f'rank{rank}'
    victim = before.get(role)
    if victim is None or not alive(victim):
        return f'there is no {role} to kill among {before}'
    deaths = server.log().count('rank_died')
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    wait_for('the killed process is gone', lambda: not alive(victim), 5)
    # Clients may hear late what the server sent long ago, so it is the server that says what the dead rank left unfinished.
    unfinished = int(server.metric('althing_requests_accepted_total') - server.metric('althing_requests_total'))
    while server.children().get(role) in (None, victim) or not server.ready(epoch):
        if time.monotonic() - killed > seconds * PATIENCE:
            return f'{role} (pid {victim}) was killed, and the server is not ready again after {seconds} s'
        crowd.step()
    after = server.children()
    lines = re.findall(r'rank_died .*', server.log())[deaths:]
    print(f'killed {role}, pid {victim}, with {tokens} of {expected} tokens heard; {unfinished} requests were unfinished; {role} is pid {after[role]} now, '
          f'ready again after {time.monotonic() - killed:.2f} s; the log says {lines}', flush=True)
    if not (len(lines) == 1 and f'rank={rank}' in lines[0].split() and 'killed by signal 9' in lines[0]):
        return f'the log should tell of one death, of rank {rank} by signal 9, and has {lines}'
    if unfinished * 4 < len(crowd.streams):
        return f'only {unfinished} of {len(crowd.streams)} requests were unfinished when the rank was dead; take longer ones (--tokens)'
    others = {other: (pid, after.get(other)) for other, pid in before.items() if other != role and after.get(other) != pid}
    return f'others were started again as well: {others}' if others else ''


def run(options, verdict):
    requests = make_requests(options)
    flags = list(options.flags)
    if options.streams > 256:
        flags += ['--sequences', options.streams]
    load = any(str(flag).split('=')[0] in ('--load', '--model') for flag in flags)
    model = options.model if options.model else None if load else TINY
    with Server(*flags, ranks=options.ranks, model=model, ready_within=options.seconds) as server:
        print(f'ready after {server.ready_seconds:.1f} s: {server.children()}', flush=True)
        began = time.monotonic()
        alone = run_alone(server, requests, options.seconds)
        total = sum(len(stream.tokens) for stream in alone)
        print(f'alone: {len(alone)} streams, {total} tokens, {time.monotonic() - began:.1f} s', flush=True)
        for number, stream in enumerate(alone):
            verdict.case(f'alone, stream {number}', '; '.join(stream.wrong) or ('' if stream.end['type'] == 'done' and stream.tokens else f'{stream.end}'))
        if verdict.failed:
            return
        notices_what_is_wrong(verdict, max(alone, key=lambda stream: len(stream.messages)))
        for title, kill in [('together', False)] + ([('killed', True)] if options.kill_rank is not None else []):
            began = time.monotonic()
            crowd = Crowd(server, requests)
            crowd.expected_tokens = total
            if kill:
                verdict.case(f'rank {options.kill_rank} was killed, and nobody else', kill_in_the_midst(server, crowd, options.kill_rank, options.seconds))
            crowd.finish(options.seconds)
            print(f'{title}: {len(crowd.streams)} streams, {crowd.tokens()} tokens, {time.monotonic() - began:.1f} s', flush=True)
            judge(verdict, title, crowd, alone)
            crowd.close()
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        verdict.case('all pages are free again')


def main():
    words = sys.argv[1:]
    split = words.index('--') if '--' in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('model', nargs='?', help='a model folder (default: the tiny model, unless the flags name another)')
    parser.add_argument('--streams', type=int, default=256)
    parser.add_argument('--ranks', type=int, default=1)
    parser.add_argument('--kill-rank', type=int, nargs='?', const=0, help='run all once more and kill this rank\'s process in their midst')
    parser.add_argument('--prompt', type=int, default=400, help='most tokens of a prompt of raw ids')
    parser.add_argument('--tokens', type=int, default=64, help='most tokens of a completion')
    parser.add_argument('--ids-below', type=int, default=1000, help='raw prompts are of random ids below this')
    parser.add_argument('--seed', type=int, default=1, help='of the requests')
    parser.add_argument('--seconds', type=float, default=300, help='the longest that any part may take')
    options = parser.parse_args(words[:split])
    options.flags = words[split + 1:]
    verdict = Verdict()
    if harness.zmq is None or not harness.BINARY.exists():
        verdict.skipped += 1
        print('skipped:', 'pyzmq is not installed (apt-get install python3-zmq)' if harness.zmq is None else f'{harness.BINARY} is not built')
        return verdict.close()
    try:
        run(options, verdict)
    except Exception as error:  # a server that does not start or goes away: whatever was counted so far still counts
        verdict.case('the run', f'{type(error).__name__}: {error}')
    return verdict.close()


if __name__ == '__main__':
    sys.exit(main())
