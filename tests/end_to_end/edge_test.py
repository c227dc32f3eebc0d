#!/usr/bin/env python3
"""Bad input at every door: frames, requests, clients that vanish or never read, wrong flags and broken models. The one who asked gets a clear answer, and nobody else notices."""
import json
import os
import pathlib
import pty
import shutil
import socket
import struct
import subprocess
import tempfile
import time

from harness import BINARY, PATIENCE, TINY, Client, Server, ask, conversations, main, wait_for, zmq

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


def a_frame_over_the_limit_gets_a_typed_error_and_the_connection_lives():
    with Server(ranks=1) as server, Client(server.endpoint) as client:
        client.send('submit', request_id='big', messages=[{'role': 'user', 'content': 'x' * (5 << 20)}])
        answer = client.receive()
        assert answer['type'] == 'error' and answer['error']['code'] == 'too_large' and '4194304' in answer['error']['message'], answer
        ask(client, 'small', CASE)
        client.finish()
        assert client.streams['small'].end['type'] == 'done'


def a_submit_that_is_repeated_at_once_starts_nothing_and_is_no_error():
    with Server(ranks=1) as server, Client(server.endpoint) as client:
        ask(client, 'one', CASE)
        for _ in range(3):
            client.send('submit', **client.streams['one'].submit)
        client.finish()
        assert client.streams['one'].end['type'] == 'done' and client.streams['one'].tokens == CASE['completion_ids'], client.streams['one'].end
        wait_for('one request was counted', lambda: server.metric('althing_requests_accepted_total') == 1)


def a_submit_right_behind_a_resume_brings_everything():
    """A resume is answered with what it asked for; the submit behind it asks for all, too soon after it, and must not wait for ever."""
    case = conversations(1)[0]
    with Server(ranks=1) as server, Client(server.endpoint) as client:
        ask(client, 'r', case)
        client.finish()
        last = client.streams['r'].sequence
        for first in ('resume', 'submit'):
            time.sleep(0.06)  # the resume of the round before is no longer the last 50 ms'
            if first == 'resume':
                client.send('resume', request_id='r', last_sequence=last - 1)
            else:
                client.send('submit', **client.streams['r'].submit)
            while (message := client.receive()) is not None and message['type'] != 'done':
                pass
            assert message and message['sequence'] == last, (first, message)
            client.submit('r', case['messages'])
            client.finish()
            assert client.streams['r'].tokens == case['completion_ids'], first


def waited_and_ran(pid):
    """Seconds that each thread of a process has run or waited for a processor, by thread."""
    times = {}
    for thread in pathlib.Path(f'/proc/{pid}/task').iterdir():
        ran, waited, _ = (thread / 'schedstat').read_text().split()
        times[thread.name] = (int(ran) + int(waited)) / 1e9
    return times


def clients_that_take_all_descriptors_leave_room_for_probes():
    with tempfile.TemporaryDirectory(prefix='althing-descriptors-') as folder:
        limited = pathlib.Path(folder) / 'althing'
        limited.write_text(f'#!/bin/sh\nulimit -n 120\nexec {BINARY} "$@"\n')
        limited.chmod(0o755)
        with Server(ranks=1, binary=limited) as server, Client(server.endpoint) as client, zmq.Context() as context:
            case = conversations(1)[0]
            ask(client, 'before', case)
            client.finish()
            crowd = [context.socket(zmq.DEALER) for _ in range(200)]
            for socket_ in crowd:
                socket_.linger = 0
                socket_.connect(server.endpoint)
            wait_for('the door is closed', lambda: 'descriptors_exhausted' in server.log())
            wait_for('probes are answered', lambda: server.get('/live')[0] == 200 and server.ready(), 5)
            assert server.metric('althing_door_closed_total') >= 1
            core, began = server.children()['core'], time.monotonic()
            before = waited_and_ran(core)
            for _ in range(10):
                time.sleep(0.1)
            busiest = max(after - before.get(thread, 0) for thread, after in waited_and_ran(core).items())
            assert busiest < 0.5 * (time.monotonic() - began), f'a thread was busy for {busiest:.2f} s: it turns in circles'
            ask(client, 'meanwhile', case)
            client.finish()
            for socket_ in crowd:
                socket_.close()
            wait_for('the door is open', lambda: 'descriptors_returned' in server.log())
            with Client(server.endpoint) as late:
                ask(late, 'after', case)
                late.finish()
                assert late.streams['after'].tokens == client.streams['meanwhile'].tokens == case['completion_ids']


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
    complaint(2, 'not loopback', 'serve', TINY, '--metrics', '0.0.0.0:9464')
    complaint(2, 'query heads', 'serve', TINY, '--ranks', '3')
    complaint(2, '--bind', 'serve', TINY, '--bind', 'tcp://0.0.0.0:4550')
    complaint(2, '--token-log-mib', 'serve', TINY, '--token-log-mib', '5000')
    complaint(2, 'rows_max', 'serve', TINY, '--rows', '1000')
    complaint(6, '--journal', 'serve', TINY, '--bind', 'tcp://127.0.0.1:0', '--metrics', '', '--journal', '/nonexistent/journal')
    complaint(6, '--kv-mib', 'serve', TINY, '--kv-mib', '1', '--context', '2048')
    assert run('chat', '--endpoint', 'tcp://127.0.0.1:9', '--once', 'hi').returncode == 3
    assert run('frobnicate').returncode == 2
    assert run('--version').returncode == 0
    with Server() as server:
        complaint(6, '--bind', 'serve', TINY, '--bind', server.endpoint, '--metrics', '127.0.0.1:0')
        complaint(6, '--metrics', 'serve', TINY, '--bind', 'tcp://127.0.0.1:0', '--metrics', server.metrics_address)


def numbers_out_of_range_name_flag_value_and_range():
    """By flag, by environment and by file, before anything starts, from every command alike."""
    engine = (('--ranks', '0', '1 to 64'), ('--ranks', '-1', '1 to 64'), ('--ranks', '2.5', '1 to 64'), ('--threads', '0', '1 to 256'), ('--dp', '0', '1 to 64'),
              ('--kv-mib', '-1', '0 to 16777216'), ('--kv-mib', '99999999999999999999999', '0 to 16777216'), ('--kv-mirror-mib', '16777217', '0 to 16777216'),
              ('--gpu-memory-fraction', 'nan', 'over 0, up to 1'))
    ask = (('-n', '0', '1 to 16'), ('--choices', '17', '1 to 16'), ('--temperature', '-1', '0 to 2'), ('--temperature', 'nan', '0 to 2'),
           ('--top-p', '2', 'over 0, up to 1'), ('--top-p', '1e-60', 'over 0, up to 1'), ('--min-p', 'inf', '0 to 1'), ('--max-tokens', '0', '1 to 4294967295'),
           ('--top-k', '-1', '0 to 4294967295'), ('--seed', '1x', '0 to 18446744073709551615'))
    serve = (('--spares', '-1', '0 to 64'), ('--quarantine-seconds', '-1', '1 to 3600'), ('--quarantine-seconds', '0', '1 to 3600'), ('--sequences', '0', '1 to 4294967295'),
             ('--rows', '4294967296', '0 to 4294967295'), ('--token-log-mib', '4097', '0 to 4096'), ('--step-timeout-ms', '99', '100 to 4294967295'))
    for command, cases in ((('serve', TINY), engine + serve), (('generate', TINY, 'hi'), engine + ask), (('chat', '--once', 'hi'), ask)):
        for flag, value, allowed in cases:
            lines = complaint(2, allowed, *command, f'{flag}={value}' if flag.startswith('--') else f'{flag}{value}')
            name = flag.replace('-n', '--choices') if flag == '-n' else flag
            assert len(lines) == 1 and name in lines[0] and f"'{value}'" in lines[0] and allowed in lines[0], (command, flag, value, lines)
    result = subprocess.run([BINARY, 'serve', TINY], capture_output=True, text=True, env={**os.environ, 'ALTHING_SPARES': '-1'}, timeout=20 * PATIENCE)
    assert result.returncode == 2 and "--spares is '-1'" in result.stderr, result
    with tempfile.NamedTemporaryFile('w', suffix='.toml') as file:
        file.write('ranks = 0\n')
        file.flush()
        complaint(2, "--ranks is '0'", 'serve', TINY, '--config', file.name)
    # The control: the ends of the ranges are taken.
    assert run('generate', TINY, 'hi', '-n', '1', '--temperature', '2', '--top-p', '1', '--min-p', '1', '--max-tokens', '1').returncode == 0


def memory_that_is_not_there_is_refused_before_a_rank_starts():
    for command in (('serve', TINY, '--bind', 'tcp://127.0.0.1:0', '--metrics', ''), ('serve', TINY, '--in-process', '--bind', 'tcp://127.0.0.1:0', '--metrics', ''),
                    ('generate', TINY, 'hi', '--log-level', 'info')):
        for flag in ('--kv-mib', '--kv-mirror-mib'):
            lines = complaint(6, f'{flag} 16777216', *command, '--device', 'cpu', flag, 16777216)
            assert len(lines) == 1 and 'MiB' in lines[0] and 'give ' + flag in lines[0], lines
            assert 'rank_started' not in run(*command, '--device', 'cpu', flag, 16777216).stderr
    limited = subprocess.run(['bash', '-c', 'ulimit -v 4000000; exec "$@"', '-', BINARY, 'generate', TINY, 'hi', '--device', 'cpu', '--kv-mib', '4000'],
                             capture_output=True, text=True, timeout=20 * PATIENCE)
    # AddressSanitizer's own mappings do not fit such a limit at all.
    assert PATIENCE > 1 or (limited.returncode == 6 and 'ulimit -v' in limited.stderr and '4000' in limited.stderr), limited


def the_memory_table_has_a_line_for_the_mirror():
    with Server('--kv-mirror-mib', '8') as server:
        wait_for('the table', lambda: 'mirror          8.0  copies of up to ' in server.log(), 5)
    with Server('--kv-mirror-mib', '0') as server:
        wait_for('the table', lambda: 'mirror          0.0  none: --kv-mirror-mib is 0' in server.log(), 5)


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


FILES = tempfile.TemporaryDirectory(prefix='althing-settings-')


def file_with(text):
    path = pathlib.Path(FILES.name) / f'{len(os.listdir(FILES.name))}.toml'
    path.write_text(text + '\n')
    return path


def settings_of(*words, environment=None):
    result = subprocess.run([str(word) for word in (BINARY, 'serve', *words, '--print-config')], capture_output=True, text=True, timeout=20 * PATIENCE,
                            env={**os.environ, **(environment or {})})
    assert result.returncode == 0, result
    return dict(line.split('=', 1) for line in result.stdout.splitlines() if '=' in line and not line.startswith('#'))


def settings_come_from_flags_over_environment_over_file():
    with tempfile.NamedTemporaryFile('w', suffix='.toml') as file:
        file.write('rows = 7\nranks = 4\nthreads = 3\n')
        file.flush()
        result = subprocess.run([BINARY, 'serve', TINY, '--config', file.name, '--ranks', '2', '--print-config'], capture_output=True, text=True,
                                env={**os.environ, 'ALTHING_THREADS': '5'}, timeout=20 * PATIENCE)
        assert result.returncode == 0, result
        values = dict(line.split('=', 1) for line in result.stdout.splitlines() if '=' in line and not line.startswith('#'))
        assert (values['rows'], values['ranks'], values['threads']) == ('7', '2', '5'), values
        complaint(3, 'config.json', 'serve', '--config', file_with('model = "/nowhere"'))
        values = settings_of('--config', file_with(f'model = "{TINY}"'))
        assert values['model'] == f'"{TINY}"', values
        assert settings_of('--config', file_with('model = "/nowhere"'), TINY)['model'] == f'"{TINY}"', 'the flag wins'
        assert settings_of('--config', file_with('model = "/nowhere"'), '--model', TINY)['model'] == f'"{TINY}"', 'the flag wins'
        assert settings_of('--config', file_with('model = "/nowhere"'), environment={'ALTHING_MODEL': str(TINY)})['model'] == f'"{TINY}"', 'the environment wins'
        complaint(2, 'no model', 'serve')
        file.write('frobs = 1\n')
        file.flush()
        complaint(2, 'frobs', 'serve', TINY, '--config', file.name)
        complaint(3, 'nowhere.toml', 'serve', TINY, '--config', '/nowhere.toml')
        complaint(2, 'it is a folder', 'serve', TINY, '--config', os.path.dirname(file.name), '--print-config')


def doctor_reports_this_machine():
    result = run('doctor', '--json')
    found = {json.loads(line)['what'] for line in result.stdout.splitlines()}
    assert {'processor', 'memory', 'GPU', 'pidfd', '--bind', '--metrics'} <= found, found


def doctor_computes_a_prompt_twice_and_tells_when_answers_do_not_repeat():
    """The control: limits on experts make a token's experts depend on its neighbours, which is what the check is there to find."""
    def model_line(*options):
        result = run('doctor', '--json', '--model', TINY, *options)
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        return result.returncode, next(line for line in lines if line['what'] == 'model')
    code, line = model_line('--ranks', '2')
    assert code == 0 and line['finding'] == 'ok' and 'bit by bit' in line['detail'], (code, line)
    code, line = model_line('--capacity-policy', 'drop', '--capacity-factor', '1')
    assert code == 5 and line['finding'] == 'WRONG' and 'router logits differ by up to' in line['detail'] and '--capacity-policy' in line['detail'], (code, line)
    code, line = model_line('--kv-mib', '1', '--ranks', '3')
    assert code == 5 and line['finding'] == 'WRONG' and 'could not be computed' in line['detail'], (code, line)


def doctor_looks_at_the_addresses_that_a_server_would_have():
    def addresses(*words, environment=None):
        result = subprocess.run([str(word) for word in (BINARY, 'doctor', '--json', *words)], capture_output=True, text=True, timeout=20 * PATIENCE,
                                env={**os.environ, **(environment or {})})
        lines = [json.loads(line) for line in result.stdout.splitlines()]
        return {line['what']: (line['finding'], line['detail']) for line in lines if line['what'].startswith('--')}
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen(1)
        address = f'127.0.0.1:{taken.getsockname()[1]}'
        for found in (addresses('--bind', f'tcp://{address}', '--metrics', '127.0.0.1:0'), addresses('--config', file_with(f'bind = "tcp://{address}"\nranks = 2\nmetrics = "127.0.0.1:0"')),
                      addresses('--metrics', '127.0.0.1:0', environment={'ALTHING_BIND': f'tcp://{address}'})):
            assert found['--bind'][0] == 'note' and address in found['--bind'][1] and found['--metrics'][0] == 'ok', found
        found = addresses('--bind', 'tcp://127.0.0.1:0', '--metrics', address)
        assert found['--bind'][0] == 'ok' and found['--metrics'][0] == 'note' and address in found['--metrics'][1], found
        assert '--metrics' not in addresses('--bind', 'tcp://127.0.0.1:0', '--metrics', '')
        # A server refuses by the same look, before it starts anything.
        result = run('serve', TINY, '--bind', 'tcp://127.0.0.1:0', '--metrics', address)
        assert result.returncode == 6 and '--metrics' in result.stderr and '_started' not in result.stderr, result
    complaint(2, '--bind', 'doctor', '--bind', 'tcp://0.0.0.0:4550')
    complaint(2, 'frobs', 'doctor', '--config', file_with('frobs = 1'))


def output_that_did_not_arrive_is_a_failure_and_a_reader_that_left_is_none():
    for words in (('verify', TINY), ('account', TINY), ('manual',), ('--help',), ('serve', TINY, '--print-config'),
                  ('trace', 'Hello', '--model', TINY, '--max-tokens', '1'), ('load-table', TINY, '--batches', '1', '--runs', '1', '--json')):
        command = [str(word) for word in (BINARY, *words)]
        with open('/dev/full', 'w', encoding='utf-8') as full:
            result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE, check=False)
        assert result.returncode == 6 and 'standard output' in result.stderr, (words, result)
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60 * PATIENCE, check=False)
        os.close(writer)
        assert result.returncode == 0 and 'standard output' not in result.stderr, (words, result)


def control_characters_of_a_model_are_shown_to_a_terminal_and_written_to_a_file():
    for token, byte, sign in ((215, b'\x1b', '\u241b'), (188, b'\0', '\u2400')):
        command = [BINARY, 'generate', str(TINY), 'Hello', '--raw', '--logit-bias', f'{token}:100', '--max-tokens', '3', '--colour', 'never']
        assert byte * 3 in subprocess.run(command, capture_output=True, timeout=60 * PATIENCE, check=True).stdout, command
        inner, outer = pty.openpty()
        subprocess.run(command, stdout=outer, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, timeout=60 * PATIENCE, check=True)
        os.close(outer)
        seen = os.read(inner, 4096)
        os.close(inner)
        assert byte not in seen and (sign * 3).encode() in seen, seen


if __name__ == '__main__':
    main(malformed_frames_get_typed_errors, junk_on_the_port_is_harmless, bad_requests_are_refused_with_both_numbers,
         two_hellos_on_one_connection_leave_nothing_behind, a_frame_over_the_limit_gets_a_typed_error_and_the_connection_lives,
         a_submit_that_is_repeated_at_once_starts_nothing_and_is_no_error, a_submit_right_behind_a_resume_brings_everything, clients_that_take_all_descriptors_leave_room_for_probes, numbers_at_the_edge_of_floats_are_served, nobody_reads_standard_error_and_serving_goes_on,
         a_client_that_vanishes_is_cancelled,
         a_client_that_never_reads_is_cancelled, flags_and_places_that_are_wrong_say_what_to_do,
         numbers_out_of_range_name_flag_value_and_range, memory_that_is_not_there_is_refused_before_a_rank_starts, the_memory_table_has_a_line_for_the_mirror,
         broken_models_are_refused_in_one_line,
         settings_come_from_flags_over_environment_over_file, doctor_reports_this_machine, doctor_computes_a_prompt_twice_and_tells_when_answers_do_not_repeat,
         doctor_looks_at_the_addresses_that_a_server_would_have, output_that_did_not_arrive_is_a_failure_and_a_reader_that_left_is_none,
         control_characters_of_a_model_are_shown_to_a_terminal_and_written_to_a_file)
