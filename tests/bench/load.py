#!/usr/bin/env python3
"""Thousands of streams at once on an engine that computes nothing, and what they cost: the server on one core, the load program on another.

    python3 tests/bench/load.py [--streams 10000] [--words 128] [--step-us 0] [--kinds zmq sse both] [--latency] [--json] [-- flags of `althing serve`]

For each kind a server is started on core 0 (all of its processes) and build/release/tests/load on core 1, which checks every byte of every stream. Printed are what the load
program says and, for each of the server's processes, the processor's time for a streamed token. --latency measures one-token requests beside a bare ROUTER on core 0 instead.
--json: one line a figure, {"figure", "value", "unit", "kind", "streams", "hardware"}. `both` opens as many streams of each kind.
"""
import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys

from streams import Server, run_benchmark

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / 'examples' / 'models' / 'tiny'
TICKS = os.sysconf('SC_CLK_TCK')


def hardware():
    with open('/proc/cpuinfo', encoding='utf-8') as lines:
        model = next((line.split(':', 1)[1].strip() for line in lines if line.startswith('model name')), 'unknown processor')
    return f'{os.cpu_count()} cores of a virtual machine, {model}'


def cpu_seconds(pid):
    words = pathlib.Path(f'/proc/{pid}/stat').read_text(encoding='utf-8').rsplit(')', 1)[1].split()
    return (int(words[11]) + int(words[12])) / TICKS


def start(options, flags, streams):
    """A server that takes `streams` at once, all of it on core 0."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {0})
    try:
        return Server('--device', 'synthetic', '--rows', max(streams, 1), '--step-tokens', max(8192, 2 * streams), '--sequences', streams + 100, '--http', '127.0.0.1:0',
                      '--http-connections', streams + 100, '--synthetic-step-us', options.step_us, '--step-timeout-ms', 60_000, '--client-silence-ms', 120_000, '--log-level', 'warning', *flags, ranks=1,
                      model=options.folder, binary=options.binary)
    finally:
        os.sched_setaffinity(0, allowed)


def load(options, mode, *flags):
    command = [options.load, mode, '--model', options.folder, '--served-model', 'synthetic-' + options.folder.name, '--core', 1, '--json', *flags]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def show(options, figures, **about):
    for figure in figures:
        if options.json:
            print(json.dumps({**figure, **about, 'hardware': hardware()}), flush=True)
        else:
            print(f'{figure["figure"]:28} {figure["value"]:12.6g} {figure["unit"]}', flush=True)


def measure_streams(options, flags, kind):
    count = options.streams
    with start(options, flags, 2 * count if kind == 'both' else count) as server:
        where = ['--zmq', server.endpoint, count] if kind != 'sse' else []
        where += ['--http', server.http, count] if kind != 'zmq' else []
        before = {role: cpu_seconds(pid) for role, pid in server.children().items()}
        if not options.json:
            print(f'{kind}: {count} streams of {options.words} words, descriptors {resource.getrlimit(resource.RLIMIT_NOFILE)} (RLIMIT_NOFILE, soft and hard)')
        code, figures = load(options, 'streams', *where, '--words', options.words, '--within', options.within)
        tokens = next(figure['value'] for figure in figures if figure['figure'] == 'streamed_tokens') or 1
        for role, pid in sorted(server.children().items()):
            figures.append({'figure': f'cpu_us_a_token_{role}', 'value': 1e6 * (cpu_seconds(pid) - before[role]) / tokens, 'unit': 'us'})
        show(options, figures, kind=kind, streams=count)
        return code


def measure_latency(options, flags):
    with start(options, flags, 256) as server:
        code, figures = load(options, 'latency', '--zmq', server.endpoint, '--metrics', server.metrics_address, '--seconds', options.seconds)
        show(options, figures, kind='latency', streams=1)
        return code


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--binary', type=pathlib.Path, default=ROOT / 'build/release/althing')
    parser.add_argument('--load', type=pathlib.Path, default=ROOT / 'build/release/tests/load')
    parser.add_argument('--folder', type=pathlib.Path, default=TINY, help='model, whose tokenizer the words are of')
    parser.add_argument('--streams', type=int, default=10_000)
    parser.add_argument('--words', type=int, default=128, help='of each answer, up to 1024')
    parser.add_argument('--step-us', type=int, default=0, help='how long a step of the engine takes')
    parser.add_argument('--kinds', nargs='*', default=['zmq', 'sse'], choices=['zmq', 'sse', 'both'])
    parser.add_argument('--latency', action='store_true')
    parser.add_argument('--seconds', type=int, default=5, help='of each part of --latency')
    parser.add_argument('--within', type=int, default=600)
    parser.add_argument('--json', action='store_true')
    words = sys.argv[1:]
    end = words.index('--') if '--' in words else len(words)
    options = parser.parse_args(words[:end])
    codes = [measure_latency(options, words[end + 1:])] if options.latency else [measure_streams(options, words[end + 1:], kind) for kind in options.kinds]
    sys.exit(max(codes))


if __name__ == '__main__':
    run_benchmark(main)
