#!/usr/bin/env python3
"""Decode speed of a server that runs: raw token ids in, a fixed number of tokens out, whatever the model says.

    python3 tests/bench/serve_decode.py [--endpoint tcp://127.0.0.1:4550] [--streams 1 8 64] [--prompt 128] [--tokens 512] [--repeat 3] [--json]

For each number of streams, the median of the repeats:
  decode       tokens/s of all streams together, from when the last has begun until the first ends
  throughput   tokens/s from the first submit to the last token, prompts included
  first_token  ms from submit to the first token, median of the streams
With --json, one line a figure: {"figure", "value", "unit", "streams", "prompt_tokens", "completion_tokens", "repeats", "model"}.
"""
import argparse
import json
import random
import statistics

from streams import Client, run_benchmark, run_streams


def requests_of(options, streams, seed):
    """No two streams have the same prompt, so nothing can be shared between them."""
    source = random.Random(seed)
    sampling = {'completion_tokens_max': options.tokens, 'ignore_stop': True}
    return [{'prompt_tokens': [source.randrange(options.ids_below) for _ in range(options.prompt)], 'sampling': sampling} for _ in range(streams)]


def measure(client, options, streams):
    timings = [run_streams(client, requests_of(options, streams, 1000 * streams + n)) for n in range(options.repeat)]
    decodes = [timing.decode for timing in timings if timing.decode is not None]
    return [('decode', statistics.median(decodes) if decodes else None, 'tok/s'),
            ('throughput', statistics.median(timing.throughput for timing in timings), 'tok/s'),
            ('first_token', statistics.median(1000 * timing.first_token_p50 for timing in timings), 'ms')]


def show(options, model, streams, figures):
    if not options.json:
        words = [f'{name} {"-" if value is None else format(value, ".1f")} {unit}' for name, value, unit in figures]
        print(f'{model}, {streams:3} streams of {options.prompt} + {options.tokens} tokens: {", ".join(words)}', flush=True)
        return
    for name, value, unit in figures:
        print(json.dumps({'figure': name, 'value': value, 'unit': unit, 'streams': streams, 'prompt_tokens': options.prompt,
                          'completion_tokens': options.tokens, 'repeats': options.repeat, 'model': model}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--endpoint', default='tcp://127.0.0.1:4550')
    parser.add_argument('--streams', type=int, nargs='*', default=[1, 8, 64])
    parser.add_argument('--prompt', type=int, default=128, help='tokens of each prompt')
    parser.add_argument('--tokens', type=int, default=512, help='tokens of each completion')
    parser.add_argument('--ids-below', type=int, default=1000, help='prompts are of random ids below this')
    parser.add_argument('--repeat', type=int, default=3)
    parser.add_argument('--json', action='store_true')
    options = parser.parse_args()
    with Client(options.endpoint) as client:
        run_streams(client, requests_of(options, 1, 0))  # warm
        for streams in options.streams:
            show(options, client.model, streams, measure(client, options, streams))


if __name__ == '__main__':
    run_benchmark(main)
