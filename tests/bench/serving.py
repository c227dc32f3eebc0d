#!/usr/bin/env python3
"""Tokens per second of a server's streams: 1 at a time and 32 at once, over ZeroMQ, as a client sees them.

    python3 tests/bench/serving.py [--ranks 1] [--streams 1 32]

Starts `build/release/althing serve examples/models/tiny` itself and prints one line a number of streams: generated tokens, seconds, tokens/s, first token p50.
"""
import argparse

from streams import Client, Server, conversations, run_benchmark, run_streams


def measure(server, streams, tokens=256):
    sampling = {'completion_tokens_max': tokens, 'ignore_stop': True}
    prompts = conversations(64)
    with Client(server.endpoint) as client:
        timing = run_streams(client, [{'messages': prompts[number % 64]['messages'], 'sampling': sampling} for number in range(streams)])
    print(f'{streams:3} streams: {timing.tokens} tokens in {timing.seconds:.2f} s, {timing.throughput:.0f} tok/s, '
          f'first token p50 {1000 * timing.first_token_p50:.0f} ms')


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
    run_benchmark(main)
