#!/usr/bin/env python3
"""Many streams at once over ZeroMQ and over HTTP, on an engine that computes nothing, with every byte checked; what that engine says of itself; and how many requests one
client may have open, by who it is. The same program measures thousands of streams (tests/bench/load.py)."""
import json
import os
import pathlib
import subprocess

from curve_test import Keys
from harness import BINARY, PATIENCE, TINY, Client, Server, ServerEnded, conversations, main, wait_for

LOAD = pathlib.Path(os.environ.get('ALTHING_LOAD_PROGRAM', BINARY.parent / 'tests' / 'load'))
CASE = conversations(1)[0]
SYNTHETIC = ('--device', 'synthetic', '--log-level', 'warning')
HTTP = ('--http', '127.0.0.1:0')


def load(mode, *flags, seconds=60):
    """{figure: value} of one run of the load program, which fails when a byte is not what it must be."""
    command = [LOAD, mode, '--model', TINY, '--served-model', 'synthetic-tiny', '--json', *flags]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {line['figure']: line['value'] for line in map(json.loads, done.stdout.splitlines())}


def streams_by_hundreds_are_whole():
    # A step takes a while, so that all are open before the first ends.
    with Server(*SYNTHETIC, *HTTP, '--rows', 600, '--step-tokens', 4096, '--sequences', 700, '--synthetic-step-us', 20_000, ranks=1) as server:
        figures = load('streams', '--zmq', server.endpoint, 300, '--http', server.http, 300, '--sessions', 3, '--words', 60)
        for kind in ('zmq', 'sse'):
            assert figures[f'{kind}_streams_whole'] == 300 and figures[f'{kind}_streams_failed'] == 0, figures
        assert figures['zmq_streams_open_at_once'] == 300 and figures['sse_streams_open_at_once'] == 300, figures
        wait_for('everything is given back', lambda: server.metric('althing_requests_running') == 0 and server.metric('althing_kv_blocks_used') == 0)


def more_streams_than_rows_wait_for_their_turn():
    with Server(*SYNTHETIC, *HTTP, '--rows', 16, '--sequences', 200, ranks=1) as server:
        figures = load('streams', '--zmq', server.endpoint, 100, '--http', server.http, 100, '--words', 40)
        assert figures['zmq_streams_whole'] == 100 and figures['sse_streams_whole'] == 100, figures


def clients_of_every_kind_get_every_byte():
    with Server(*SYNTHETIC, '--rows', 32, '--sequences', 300, ranks=1) as server:
        for kind in ('steady', 'poisson', 'bursts', 'prefixes', 'agents', 'tails', 'mixed'):
            figures = load('streams', '--zmq', server.endpoint, 60, '--workload', kind, '--rate', 400, '--words', 60, '--sessions', 4)
            assert figures['zmq_streams_whole'] == 60 and 0 < figures['first_delta_p50'] <= figures['first_delta_p99'], (kind, figures)
        # They come one after the other: a fiftieth of a second apart, sixty take more than a second.
        figures = load('streams', '--zmq', server.endpoint, 60, '--workload', 'steady', '--rate', 50, '--words', 20)
        assert figures['stream_seconds'] > 1.0 and figures['zmq_streams_open_at_once'] < 60, figures
    for flags, needle in ((('--workload', 'none'), "no workload 'none'"), (('--workload', 'poisson', '--http', '127.0.0.1:9', 3), 'no --http')):
        command = [LOAD, 'streams', '--model', TINY, '--zmq', 'tcp://127.0.0.1:9', 3, *flags]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
        assert done.returncode == 1 and needle in done.stderr, done


def a_rank_that_dies_changes_no_byte():
    with Server(*SYNTHETIC, '--log-level', 'info', '--allow-faults', '--synthetic-step-us', 5000, ranks=2) as server:
        subprocess.run([BINARY, 'inject', 'kill', '--rank', '1', '--after', '40', '--ready-file', server.ready_file], check=True, capture_output=True, timeout=30)
        figures = load('streams', '--zmq', server.endpoint, 40, '--words', 100)
        assert figures['zmq_streams_whole'] == 40, figures
        assert 'fault rank=1' in server.log(), server.log()


def latency_is_measured_beside_a_bare_router():
    with Server(*SYNTHETIC, ranks=1) as server:
        figures = load('latency', '--zmq', server.endpoint, '--metrics', server.metrics_address, '--seconds', 1)
        assert figures['saturation'] > 0 and 0 < figures['echo_p50'] < figures['first_delta_p50'], figures


def the_load_program_sees_what_is_wrong():
    """A model that thinks for itself says something else, and every stream of it is a failure."""
    with Server('--device', 'cpu', *HTTP, ranks=1) as server:
        for where in (('--zmq', server.endpoint, 3), ('--http', server.http, 3)):
            command = [LOAD, 'streams', '--model', TINY, '--served-model', 'tiny', '--json', *where]
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
            failed = [line['value'] for line in map(json.loads, done.stdout.splitlines()) if line['figure'].endswith('_streams_failed')]
            assert done.returncode == 1 and failed == [3] and 'is not what the engine said' in done.stderr, done.stdout + done.stderr


def a_synthetic_engine_says_that_it_is_one():
    with Server(*SYNTHETIC, ranks=1) as server, Client(server.endpoint) as client:
        assert client.model == 'synthetic-tiny', client.model
        assert 'synthetic_engine' in server.log() and 'nothing is computed' in server.log(), server.log()
    words = subprocess.run([BINARY, 'serve', '--help'], capture_output=True, text=True, check=True, timeout=30).stdout
    assert 'computes nothing' in ' '.join(words.split()), words
    try:
        with Server('--device', 'cpu', '--synthetic-step-us', 5, ranks=1):
            raise AssertionError('a step time for an engine that computes was taken')
    except ServerEnded as ended:
        assert ended.code == 2 and '--device is cpu' in ended.reason, ended


def open_at_most(server, most, keys=None):
    """`most` requests of one client are taken and the next is not, until one has ended."""
    with Client(server.endpoint, keys=keys) as client:
        for number in range(most + 1):
            client.submit(f'r{number}', CASE['messages'], sampling={'completion_tokens_max': 40, 'ignore_stop': True})
        wait_for('the refusal', lambda: client.step() or client.streams[f'r{most}'].end, 10)
        error = client.streams[f'r{most}'].end.get('error') or {}
        assert error.get('code') == 'busy' and f'{most} requests open' in error['message'], client.streams[f'r{most}'].end
        client.finish()
        assert all(client.streams[f'r{number}'].end['type'] == 'done' for number in range(most)), [stream.end for stream in client.streams.values()]
        client.submit('again', CASE['messages'], sampling={'completion_tokens_max': 2})
        client.finish()
        assert client.streams['again'].end['type'] == 'done', client.streams['again'].end


BOUNDS = ('--client-requests', 3, '--gateway-requests', 5, '--synthetic-step-us', 20_000)


def without_keys_http_decides_how_many_requests_a_client_has():
    with Server(*SYNTHETIC, *BOUNDS, ranks=1) as server:
        open_at_most(server, 3)
    with Server(*SYNTHETIC, *BOUNDS, *HTTP, ranks=1) as server:
        open_at_most(server, 5)


def with_keys_the_role_decides():
    with Keys() as keys:
        plain, admin, web = keys.client('plain'), keys.client('admin', 'admin'), keys.client('web', 'gateway')
        with Server(*SYNTHETIC, *BOUNDS, *HTTP, *keys.flags(), ranks=1) as server:
            open_at_most(server, 3, plain)
            open_at_most(server, 3, admin)
            open_at_most(server, 5, web)


def a_gateway_has_as_many_requests_as_connections():
    with Server(*SYNTHETIC, *HTTP, '--http-connections', 400, '--sequences', 500, '--synthetic-step-us', 10_000, ranks=1) as server:
        figures = load('streams', '--http', server.http, 380, '--words', 30)
        assert figures['sse_streams_open_at_once'] > 256, figures


if __name__ == '__main__':
    main(streams_by_hundreds_are_whole, more_streams_than_rows_wait_for_their_turn, clients_of_every_kind_get_every_byte, a_rank_that_dies_changes_no_byte, latency_is_measured_beside_a_bare_router,
         the_load_program_sees_what_is_wrong, a_synthetic_engine_says_that_it_is_one, without_keys_http_decides_how_many_requests_a_client_has, with_keys_the_role_decides,
         a_gateway_has_as_many_requests_as_connections, missing='' if LOAD.exists() else f'{LOAD} is not built')
