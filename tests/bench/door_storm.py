#!/usr/bin/env python3
"""What junk, slow and half-open peers at both doors (ZeroMQ and HTTP) cost those who behave: the latency of short completions in interleaved windows with and without a
storm, and the memory that the server's processes have grown by. The server runs on the first processor, the storm (at the lowest priority) and the one who measures on the
last. Prints a line a window, then the figures: the median over windows of each window's P50 and P99, their ratios, and MiB.
usage: door_storm.py [WINDOWS [SECONDS [JUNK_A_SECOND]]]   (20 windows with and 20 without a storm, of 30 s, 100 junk connections a second)"""
import contextlib
import os
import random
import select
import signal
import socket
import statistics
import subprocess
import sys
import time

from streams import Client, Server, conversations

HALF_OPEN, SLOW, UNREAD = 100, 50, 10  # peers at each door that stay for a whole window
GREETING = b'\xff' + 8 * b'\0' + b'\x7f' + b'\3\0' + b'NULL'.ljust(20, b'\0') + 32 * b'\0'
READY = b'\4\x29\5READY\x0bSocket-Type\0\0\0\6DEALER\x08Identity\0\0\0\0'


def address_of(text):
    host, port = text.removeprefix('tcp://').rsplit(':', 1)
    return host, int(port)


def connect(address, blocking=False):
    peer = socket.socket()
    peer.setblocking(blocking)
    with contextlib.suppress(BlockingIOError):
        peer.connect(address)
    return peer


def junk(random_source, door):
    """What one of them says: noise, or what is right up to somewhere and then is not."""
    noise = random_source.randbytes(random_source.choice((1, 9, 64, 400, 4000)))
    if door == 'zmq':
        right = GREETING + READY + b'\1\5ALT1j' + b'\0\x40' + b'{"type":"hello","version":1}'.ljust(64)
        huge = GREETING + READY + b'\2' + (1 << 62).to_bytes(8, 'big') + noise
    else:
        right = b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 30\r\n\r\n{"messages": [{"role": "user"}]'
        huge = b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n' + noise
    cut = random_source.randrange(len(right))
    return random_source.choice((noise, right[:cut], right[:cut] + noise, huge))


class Storm:
    """Runs in a process of its own until its input ends."""

    def __init__(self, zmq_address, http_address, rate):
        self.doors = {'zmq': address_of(zmq_address), 'http': address_of(http_address)}
        self.rate, self.random = rate, random.Random(7)
        self.held, self.slow, self.passing = [], [], []
        self.sent = 0

    def begin(self):
        for name, address in self.doors.items():
            self.held += [connect(address) for _ in range(HALF_OPEN)]
            self.slow += [(connect(address), iter(GREETING + READY * 9 if name == 'zmq' else b'GET /v1/models HTTP/1.1\r\nHost: ' + 4000 * b'x')) for _ in range(SLOW)]
        body = b'{"messages":[{"role":"user","content":"Tell me a story."}],"stream":true,"max_tokens":4}'
        for _ in range(UNREAD):
            peer = connect(self.doors['http'], True)
            peer.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
            self.held.append(peer)

    def beat(self, due):
        """A byte of each slow peer a second; junk connections as they are due, which leave again when they are refused or after half a second."""
        now = time.monotonic()
        while self.sent < due:
            self.sent += 1
            door = self.random.choice(list(self.doors))
            self.passing.append((now + 0.5, connect(self.doors[door]), junk(self.random, door)))
        stay = []
        for until, peer, words in self.passing:
            if words:
                with contextlib.suppress(BlockingIOError, OSError):
                    words = words[peer.send(words):]
            if now < until:
                stay.append((until, peer, words))
            else:
                if self.random.random() < 0.5:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b'\1\0\0\0\0\0\0\0')  # a reset
                peer.close()
        self.passing = stay
        for peer, words in self.slow[int(now * len(self.slow)) % len(self.slow)::len(self.slow)]:
            with contextlib.suppress(BlockingIOError, OSError):
                peer.send(bytes([next(words, 0)]))

    def run(self):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        os.nice(19)
        self.begin()
        began = time.monotonic()
        print('storming', flush=True)
        while not select.select([sys.stdin], [], [], 0.01)[0]:
            self.beat((time.monotonic() - began) * self.rate)
        print(self.sent, flush=True)


def window(client, case, seconds):
    """Latencies of completions of four tokens, one after the other."""
    latencies, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        key = f'{case["number"]}'
        case['number'] += 1
        began = time.monotonic()
        client.submit(key, case['messages'], sampling={'completion_tokens_max': 4})
        client.finish()
        latencies.append(time.monotonic() - began)
        assert client.streams.pop(key).end['type'] == 'done'
    return latencies


def p99(latencies):
    return statistics.quantiles(latencies, n=100)[98]


def resident(server):
    """MiB by process."""
    return {role: kib / 1024 for role, (_, kib) in server.usage().items()}


def main():
    if {'-h', '--help'} & set(sys.argv[1:]):
        print(__doc__)
        return
    if sys.argv[1:2] == ['storm']:
        return Storm(sys.argv[2], sys.argv[3], float(sys.argv[4])).run()
    windows, seconds, rate = (float(word) for word in (sys.argv[1:] + ['20', '30', '100'][len(sys.argv) - 1:]))
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[0]})
    figures, grown = {False: [], True: []}, {False: {}, True: {}}
    # Memory for the KV cache is taken when it is first written, so there is little of it, and all of it is written before anything counts.
    with Server('--http', '127.0.0.1:0', '--kv-mib', 16, '--kv-mirror-mib', 16, ranks=1) as server:
        os.sched_setaffinity(0, {processors[-1]})
        case = {**conversations(1)[0], 'number': 0}
        with Client(server.endpoint) as client:
            window(client, case, 20)
            connections = 0
            for i in range(int(windows) * 2):
                stormy = i % 2 == 1
                storm, before = None, resident(server)
                if stormy:
                    storm = subprocess.Popen([sys.executable, __file__, 'storm', server.endpoint, server.http, str(rate)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                    assert storm.stdout.readline() == 'storming\n'
                latencies = window(client, case, seconds)
                if storm:
                    connections += int(storm.communicate('\n', timeout=60)[0])
                for role, now in resident(server).items():
                    grown[stormy][role] = grown[stormy].get(role, 0) + now - before.get(role, 0)
                figures[stormy].append((statistics.median(latencies), p99(latencies)))
                print(f'{"storm" if stormy else "quiet"}: {len(latencies)} requests, P50 {1e3 * figures[stormy][-1][0]:.2f} ms, P99 {1e3 * figures[stormy][-1][1]:.2f} ms', flush=True)
            window(client, case, 1)
    middle = {stormy: [statistics.median(column) for column in zip(*rows)] for stormy, rows in figures.items()}
    print(f'{connections} junk connections, {2 * HALF_OPEN} half-open, {2 * SLOW} slow and {UNREAD} unread peers in {int(windows)} windows of {seconds:.0f} s')
    for index, name in enumerate(('P50', 'P99')):
        print(f'{name} quiet {1e3 * middle[False][index]:.2f} ms, storm {1e3 * middle[True][index]:.2f} ms, ratio {middle[True][index] / middle[False][index]:.3f}')
    for stormy, name in ((False, 'quiet'), (True, 'stormy')):
        parts = ', '.join(f'{role} {more:.1f}' for role, more in sorted(grown[stormy].items()))
        print(f'memory grew in {name} windows by {sum(grown[stormy].values()):.1f} MiB ({parts})')


if __name__ == '__main__':
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    main()
