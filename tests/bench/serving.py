#!/usr/bin/env python3
"""Tokens per second of a running server's streams: 1 at a time and 32 at once, over ZeroMQ, as a client sees them.

    python3 tests/bench/serving.py [--ranks 1] [--streams 1 32]

Starts `build/release/althing serve examples/models/tiny` itself and prints one line a number of streams: generated tokens, seconds, tokens/s, first token p50.
"""
import argparse
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'end_to_end'))
from harness import Client, Server, conversations  # noqa: E402


def measure(server, streams, tokens=256):
    with Client(server.endpoint) as client:
        sampling = {'completion_tokens_max': tokens, 'ignore_stop': True}
        began = time.monotonic()
        first = {}
        for number in range(streams):
            client.submit(f'{number}', conversations(64)[number % 64]['messages'], sampling=sampling)
        while client.open():
            client.step()
            for key, stream in client.streams.items():
                if stream.tokens:
                    first.setdefault(key, time.monotonic() - began)
        seconds = time.monotonic() - began
        count = sum(len(stream.tokens) for stream in client.streams.values())
    print(f'{streams:3} streams: {count} tokens in {seconds:.2f} s, {count / seconds:.0f} tok/s, first token p50 {1000 * statistics.median(first.values()):.0f} ms')


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--ranks', type=int, default=1)
    parser.add_argument('--streams', type=int, nargs='*', default=[1, 32])
    options = parser.parse_args()
    with Server(ranks=options.ranks) as server:
        print(f'{options.ranks} ranks, ready after {server.ready_seconds:.2f} s')
        for streams in options.streams:
            measure(server, streams)


if __name__ == '__main__':
    main()
