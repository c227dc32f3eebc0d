#!/usr/bin/env python3
"""Bad input at every door: frames, requests, clients that vanish or never read, wrong flags and broken models. The one who asked gets a clear answer, and nobody else notices."""
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import tempfile

from harness import BINARY, PATIENCE, TINY, Client, Server, ask, conversations, main, wait_for

CASE = conversations(1)[0]
FOREVER = {'completion_tokens_max': 1800, 'ignore_stop': True}


def still_serves(server):
    with Client(server.endpoint) as client:
        ask(client, 'ok', CASE)
        client.finish()
        assert client.streams['ok'].tokens == CASE['completion_ids']


def error_of(client, frames):
    client.socket.send_multipart(frames)
    answer = client.receive()
    assert answer and answer['type'] == 'error', answer
    return answer


def malformed_frames_get_typed_errors():
    with Server() as server:
        with Client(server.endpoint) as client:
            for body, code in ((b'', 'corrupt'), (b'{', 'corrupt'), (b'[]', 'corrupt'), (b'{"type":"dance"}', 'unsupported'), (b'\xff\xfe', 'corrupt'),
                               (b'[' * 100000, 'corrupt'), (json.dumps({'type': 'submit', 'request_id': 5}).encode(), 'invalid_argument')):
                got = error_of(client, [b'ALT1j', body])['error']['code']
                assert got == code or got in ('corrupt', 'invalid_argument'), (body[:20], got)
            client.socket.send_multipart([b'ALT1c', b'\0' * 64])
            assert client.socket.poll(5000) and client.socket.recv_multipart()[0] == b'ALT1c', 'an answer in the encoding that was asked in'
            assert error_of(client, [b'ALT2j', b'{}'])['error']['code'] == 'version'
            assert error_of(client, [b'HTTP', b'{}'])['error']['code'] == 'corrupt'
            assert error_of(client, [b'ALT1j', b'{}', b'more'])['error']['code'] == 'corrupt'
        with Client(server.endpoint, hello=False) as client:
            client.submit('r', CASE['messages'])
            answer = client.receive()
            assert answer['error']['code'] == 'unavailable' and 'hello' in answer['error']['message'], answer
            client.send('hello', version_min=7, version_max=9, client_id='x' * 32, client_name='future')
            assert client.receive()['error']['code'] == 'version'
        assert server.metric('althing_frames_refused_total') > 5
        still_serves(server)


def junk_on_the_port_is_harmless():
    with Server() as server:
        host, port = server.endpoint[6:].rsplit(':', 1)
        for junk in (b'GET / HTTP/1.1\r\n\r\n', os.urandom(4096), b'\xff' + b'\0' * 8 + b'\x7f' + b'\xff' * 64, b''):
            with socket.create_connection((host, int(port))) as connection:
                connection.sendall(junk)
        with Client(server.endpoint) as client:
            # An announced frame over the limit ends that connection, nothing else.
            client.socket.send_multipart([b'ALT1j', b' ' * (5 << 20)])
            still_serves(server)


def bad_requests_are_refused_with_both_numbers():
    with Server() as server, Client(server.endpoint) as client:
        long = [{'role': 'user', 'content': 'word ' * 4000}]
        wrong = {'long': dict(messages=long), 'empty': dict(messages=[]),
                 'temperature': dict(messages=CASE['messages'], sampling={'temperature': -1}),
                 'top_p': dict(messages=CASE['messages'], sampling={'top_p': 0}),
                 'ids': dict(prompt_tokens=[1, 2, 99999999])}
        for name, members in wrong.items():
            client.submit(name, **members)
        client.finish()
        for name in wrong:
            end = client.streams[name].end
            assert end['type'] == 'error', (name, end)
        message = client.streams['long'].end['error']
        assert message['code'] == 'too_large' and '2048' in message['message'], message
        still_serves(server)


def two_hellos_on_one_connection_leave_nothing_behind():
    with Server('--client-silence-ms', '1500') as server:
        client = Client(server.endpoint)
        client.submit('gone', CASE['messages'], sampling=FOREVER)
        while not client.streams['gone'].tokens:
            client.step()
        client.client_id = 'another client, same connection'
        client.hello_again()
        client.close()
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0, 15)
        still_serves(server)


def numbers_at_the_edge_of_floats_are_served():
    with Server() as server, Client(server.endpoint) as client:
        for number, sampling in enumerate(({'temperature': 1e-45}, {'temperature': 1e-39}, {'min_p': 1e-45, 'temperature': 1}, {'temperature': 2})):
            client.submit(f'{number}', CASE['messages'], sampling={**sampling, 'completion_tokens_max': 8})
        client.finish()
        assert all(stream.end['type'] == 'done' for stream in client.streams.values()), [stream.end for stream in client.streams.values()]
        still_serves(server)


def nobody_reads_standard_error_and_serving_goes_on():
    import fcntl
    import signal
    reader, writer = os.pipe()
    fcntl.fcntl(writer, 1031, 4096)  # F_SETPIPE_SZ: full after a few lines
    with tempfile.TemporaryDirectory() as folder:
        ready = pathlib.Path(folder) / 'ready.json'
        process = subprocess.Popen([BINARY, 'serve', TINY, '--bind', 'tcp://127.0.0.1:0', '--metrics', '', '--ready-file', ready, '--log-level', 'debug'],
                                   stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=writer)
        os.close(writer)
        wait_for('the server is ready', ready.exists, 20)
        endpoint = json.loads(ready.read_text())['endpoint']
        for number in range(20):
            with Client(endpoint) as client:
                client.submit('r', CASE['messages'], sampling={'completion_tokens_max': 4})
                client.finish()
                assert client.streams['r'].end['type'] == 'done'
        process.send_signal(signal.SIGTERM)
        assert process.wait(15 * PATIENCE) == 0
    os.close(reader)


def a_client_that_vanishes_is_cancelled():
    with Server('--client-silence-ms', '1500') as server:
        client = Client(server.endpoint)
        client.submit('gone', CASE['messages'], sampling=FOREVER)
        while not client.streams['gone'].tokens:
            client.step()
        wait_for('pages are used', lambda: server.metric('althing_kv_blocks_used') > 0)
        client.close()
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0, 15)
        still_serves(server)


def a_client_that_never_reads_is_cancelled():
    with Server('--client-buffer-bytes', '20000', '--credit-stall-ms', '1500') as server:
        with Client(server.endpoint) as client:
            client.submit('stalled', CASE['messages'], sampling=FOREVER, credit=1)
            client.finish()
            assert client.streams['stalled'].end['error']['code'] == 'slow_reader', client.streams['stalled'].end
        reader = Client(server.endpoint)
        reader.socket.setsockopt(__import__('zmq').RCVHWM, 1)
        for number in range(32):
            reader.submit(f'{number}', CASE['messages'], sampling=FOREVER)
        wait_for('pages are back', lambda: server.metric('althing_requests_accepted_total') >= 33 and server.metric('althing_kv_blocks_used') == 0, 90)
        reader.close()
        still_serves(server)


def run(*words):
    return subprocess.run([str(word) for word in (BINARY, *words)], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)


def complaint(code, needle, *words):
    result = run(*words)
    lines = [line for line in result.stderr.splitlines() if line.startswith('althing: ')]
    assert result.returncode == code, (words, result)
    assert needle in result.stderr, (words, result.stderr)
    return lines


def flags_and_places_that_are_wrong_say_what_to_do():
    complaint(3, 'config.json', 'serve', '/nonexistent')
    complaint(2, '--ranks', 'serve', TINY, '--ranks', 'many')
    complaint(2, 'query heads', 'serve', TINY, '--ranks', '3')
    complaint(2, '--bind', 'serve', TINY, '--bind', 'tcp://0.0.0.0:4550')
    complaint(2, 'rows_max', 'serve', TINY, '--rows', '1000')
    complaint(6, '--journal', 'serve', TINY, '--bind', 'tcp://127.0.0.1:0', '--metrics', '', '--journal', '/nonexistent/journal')
    complaint(6, '--kv-mib', 'serve', TINY, '--kv-mib', '1', '--context', '2048')
    assert run('chat', '--endpoint', 'tcp://127.0.0.1:9', '--once', 'hi').returncode == 3
    assert run('frobnicate').returncode == 2
    assert run('--version').returncode == 0
    with Server() as server:
        complaint(6, '--bind', 'serve', TINY, '--bind', server.endpoint, '--metrics', '127.0.0.1:0')
        complaint(6, '--metrics', 'serve', TINY, '--bind', 'tcp://127.0.0.1:0', '--metrics', server.metrics_address)


def broken_models_are_refused_in_one_line():
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / 'model'
        shutil.copytree(TINY, model)
        weights = model / 'model.safetensors'
        whole = weights.read_bytes()
        weights.write_bytes(whole[:len(whole) // 2])
        lines = complaint(4, 'model.safetensors', 'serve', model)
        assert len(lines) == 1, lines
        assert run('verify', model).returncode == 4
        weights.write_bytes(struct.pack('<Q', 1 << 60) + whole[8:])
        complaint(4, 'model.safetensors', 'serve', model)
        weights.write_bytes(whole)
        assert run('verify', model).returncode == 0
        (model / 'tokenizer.json').unlink()
        complaint(3, 'tokenizer.json', 'serve', model)
        (model / 'config.json').write_text('{')
        complaint(4, 'config.json', 'serve', model)
        assert run('verify', model).returncode == 4


def settings_come_from_flags_over_environment_over_file():
    with tempfile.NamedTemporaryFile('w', suffix='.toml') as file:
        file.write('rows = 7\nranks = 4\nthreads = 3\n')
        file.flush()
        result = subprocess.run([BINARY, 'serve', TINY, '--config', file.name, '--ranks', '2', '--print-config'], capture_output=True, text=True,
                                env={**os.environ, 'ALTHING_THREADS': '5'}, timeout=20 * PATIENCE)
        assert result.returncode == 0, result
        values = dict(line.split('=', 1) for line in result.stdout.splitlines() if '=' in line and not line.startswith('#'))
        assert (values['rows'], values['ranks'], values['threads']) == ('7', '2', '5'), values
        file.write('frobs = 1\n')
        file.flush()
        complaint(2, 'frobs', 'serve', TINY, '--config', file.name)
        complaint(3, 'nowhere.toml', 'serve', TINY, '--config', '/nowhere.toml')


def doctor_reports_this_machine():
    result = run('doctor', '--json')
    found = {json.loads(line)['what'] for line in result.stdout.splitlines()}
    assert {'processor', 'memory', 'GPU', 'pidfd'} <= found, found


if __name__ == '__main__':
    main(malformed_frames_get_typed_errors, junk_on_the_port_is_harmless, bad_requests_are_refused_with_both_numbers,
         two_hellos_on_one_connection_leave_nothing_behind, numbers_at_the_edge_of_floats_are_served, nobody_reads_standard_error_and_serving_goes_on,
         a_client_that_vanishes_is_cancelled,
         a_client_that_never_reads_is_cancelled, flags_and_places_that_are_wrong_say_what_to_do, broken_models_are_refused_in_one_line,
         settings_come_from_flags_over_environment_over_file, doctor_reports_this_machine)
