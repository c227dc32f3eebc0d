#!/usr/bin/env python3
"""How soon a server that is started gives a first token: process start, weights, first step and the way to a client together.

    python3 tests/bench/start_time.py BINARY FOLDER [--device cuda] [--ranks 1] [--repeat 1] [--json] [-- flags of `althing serve`]

Each round starts `BINARY serve FOLDER`, submits a prompt of raw token ids as soon as the server is ready, and stops the server after its tokens. start_20b is
the median of the rounds' seconds from process start to first token. Whether files come from disk or from memory is up to who calls it: the first round warms
the page cache for the others. With --json: {"figure", "value", "unit", "rounds", "ready", "repeats", "model"}, `ready` being the median until readiness.
"""
import argparse
import json
import pathlib
import random
import statistics
import sys

from streams import Client, Server, run_benchmark, run_streams


def start_once(options, flags):
    """(seconds until ready, seconds until the first token, the model's name), both from the start of the process."""
    source = random.Random(1)
    request = {'prompt_tokens': [source.randrange(options.ids_below) for _ in range(options.prompt)],
               'sampling': {'completion_tokens_max': options.tokens, 'ignore_stop': True}}
    server = Server('--device', options.device, *flags, ranks=options.ranks, model=options.folder, binary=options.binary, ready_within=options.within)
    with server, Client(server.endpoint) as client:
        run_streams(client, [request], options.within)
        first = min(stream.arrivals[0][0] for stream in client.streams.values())
        return server.ready_seconds, first - server.started, client.model


def show(options, rounds):
    ready, first = ([one[place] for one in rounds] for place in (0, 1))
    if options.json:
        print(json.dumps({'figure': 'start_20b', 'value': statistics.median(first), 'unit': 's', 'rounds': first, 'ready': statistics.median(ready),
                          'repeats': len(rounds), 'model': rounds[0][2]}), flush=True)
        return
    for number, (until_ready, until_first, model) in enumerate(rounds, 1):
        print(f'{model}, round {number}: ready after {until_ready:.2f} s, first token after {until_first:.2f} s')
    print(f'start_20b {statistics.median(first):.2f} s', flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('binary', type=pathlib.Path)
    parser.add_argument('folder', type=pathlib.Path)
    parser.add_argument('--device', default='cuda', help='cuda (default), or cpu where there is no GPU')
    parser.add_argument('--ranks', type=int, default=1)
    parser.add_argument('--prompt', type=int, default=128, help='tokens of the prompt')
    parser.add_argument('--tokens', type=int, default=8, help='tokens of the completion')
    parser.add_argument('--ids-below', type=int, default=1000, help='the prompt is of random ids below this')
    parser.add_argument('--repeat', type=int, default=1)
    parser.add_argument('--within', type=float, default=300, help='seconds after which a server that is not ready has failed')
    parser.add_argument('--json', action='store_true')
    words = sys.argv[1:]
    end = words.index('--') if '--' in words else len(words)
    options = parser.parse_args(words[:end])
    show(options, [start_once(options, words[end + 1:]) for _ in range(options.repeat)])


if __name__ == '__main__':
    run_benchmark(main)
