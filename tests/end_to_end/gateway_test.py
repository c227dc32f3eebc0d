#!/usr/bin/env python3
"""The HTTP gateway as a process: who needs a key and what it allows, clients that leave or send anything, deaths, drains, and the gateway alone before, beside and after a server.
Plain sockets and http.client; the API itself is openai_test.py's."""
import contextlib
import hashlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import tempfile
import time

from harness import BINARY, PATIENCE, TINY, Client, Server, ServerEnded, main, wait_for

ADD = [{'role': 'user', 'content': 'What is 12 + 30?'}]
LONG = {'messages': [{'role': 'user', 'content': 'Tell me a story.'}], 'max_tokens': 1500, 'ignore_eos': True, 'stream': True}
HTTP = ('--http', '127.0.0.1:0')


class Answer:
    def __init__(self, response):
        self.status, self.headers, self.text = response.status, response.headers, response.read().decode()

    json = property(lambda self: json.loads(self.text))


def ask(address, method, path, body=None, key=None, headers=None):
    connection = http.client.HTTPConnection(address, timeout=30)
    headers = {'Content-Type': 'application/json', **({'Authorization': f'Bearer {key}'} if key else {}), **(headers or {})}
    with contextlib.closing(connection):
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return Answer(connection.getresponse())


def chat(address, key=None, **members):
    return ask(address, 'POST', '/v1/chat/completions', {'messages': ADD, 'temperature': 0, **members}, key)


def state(address):
    try:
        answer = ask(address, 'GET', '/ready')
        return answer.status, answer.json['state']
    except OSError:
        return 0, ''


class Stream:
    """One streamed chat over a socket of its own."""

    def __init__(self, address, **members):
        host, port = address.rsplit(':', 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        body = json.dumps({**LONG, **members}).encode()
        self.socket.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
        self.text = b''

    def until(self, what):
        while what not in self.text:
            more = self.socket.recv(65536)
            if not more:
                break
            self.text += more
        assert what in self.text, self.text[-500:]
        return self

    def close(self):
        self.socket.close()


def raw(address, *pieces, half_close=False):
    """What comes back for these bytes, until the connection is closed."""
    host, port = address.rsplit(':', 1)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        for piece in pieces:
            connection.sendall(piece)
        if half_close:
            connection.shutdown(socket.SHUT_WR)
        answer = b''
        with contextlib.suppress(ConnectionResetError):
            while more := connection.recv(65536):
                answer += more
    return answer


class Keys:
    """A file of API keys; the secret of NAME is secret-NAME."""

    def __init__(self, *lines):
        self.folder = tempfile.TemporaryDirectory(prefix='althing-keys-')
        self.path = pathlib.Path(self.folder.name) / 'keys'
        self.write(*lines)

    def write(self, *lines, mode=0o600):
        aside = self.path.with_suffix('.new')
        aside.write_text(''.join(f'{line.split()[0]} {hashlib.sha256(("secret-" + line.split()[0]).encode()).hexdigest()} {" ".join(line.split()[1:])}\n' for line in lines))
        aside.chmod(mode)
        aside.rename(self.path)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()


def cancelled(server):
    return server.metric('althing_requests_total{outcome="cancelled"}')


# --- long silences ---

def a_stream_that_waits_says_that_it_lives():
    with Server(*HTTP, '--http-keep-alive-ms', '100', '--allow-faults', ranks=1) as server:
        for path, body in (('/v1/chat/completions', {'messages': ADD}), ('/v1/responses', {'input': 'What is 12 + 30?'}), ('/v1/completions', {'prompt': 'one'})):
            # The step that would compute the prompt takes a second.
            subprocess.run([BINARY, 'inject', 'slow', '--rank', '0', '--ms', '1000', '--steps', '1', '--ready-file', server.ready_file], check=True, timeout=20 * PATIENCE,
                           capture_output=True)
            text = ask(server.http, 'POST', path, {**body, 'stream': True, 'temperature': 0}).text
            comments = text.count(': keep-alive\n\n')
            assert 2 <= comments <= 40, (path, comments, text[:300])
            events = [event for event in text.split('\n\n') if event and event != ': keep-alive']
            assert all(event.startswith(('data: ', 'event: ')) for event in events) and len(events) > 2, text[:500]
    with Server(*HTTP, '--http-keep-alive-ms', '0', '--allow-faults', ranks=1) as server:
        subprocess.run([BINARY, 'inject', 'slow', '--rank', '0', '--ms', '1000', '--steps', '1', '--ready-file', server.ready_file], check=True, timeout=20 * PATIENCE,
                       capture_output=True)
        assert 'keep-alive' not in ask(server.http, 'POST', '/v1/chat/completions', {'messages': ADD, 'stream': True}).text


# --- several prompts ---

def a_list_of_prompts_is_answered_as_each_alone():
    with Server(*HTTP, ranks=1) as server:
        def complete(prompt, **members):
            return ask(server.http, 'POST', '/v1/completions', {'prompt': prompt, 'temperature': 1, 'seed': 3, 'n': 2, 'max_tokens': 12, **members})
        prompts = ['one two', 'What is', [11, 12, 13], 'Tell me']
        alone = [complete(prompt).json for prompt in prompts]
        said = [[choice['text'] for choice in answer['choices']] for answer in alone]
        together = complete(prompts).json
        assert [choice['index'] for choice in together['choices']] == list(range(8)), together
        assert [choice['text'] for choice in together['choices']] == sum(said, []), (together, said)
        for name in ('prompt_tokens', 'completion_tokens', 'total_tokens'):
            assert together['usage'][name] == sum(answer['usage'][name] for answer in alone), (name, together['usage'])
        streamed, usage = [''] * 8, None
        text = complete(prompts, stream=True, stream_options={'include_usage': True}).text
        for line in text.splitlines():
            if line.startswith('data: {'):
                event = json.loads(line[6:])
                usage = event.get('usage') or usage
                for choice in event['choices']:
                    streamed[choice['index']] += choice['text']
        assert streamed == sum(said, []) and usage == together['usage'] and text.endswith('data: [DONE]\n\n'), text[-300:]
        wrong = complete(['one', 'x ' * 3000])
        assert wrong.status == 400 and wrong.json['error']['code'] == 'context_length_exceeded', wrong.text
        assert complete(['one', '']).json['error']['param'] == 'prompt[1]'


# --- keys ---

def without_a_right_key_everything_but_probes_is_refused_alike():
    with Keys('alice tenant=acme') as keys, Server(*HTTP, '--api-keys', keys.path, ranks=1) as server:
        for path in ('/live', '/ready'):
            assert ask(server.http, 'GET', path).status == 200, path
        refusals = [chat(server.http, key) for key in (None, 'secret-bob', 'secret-alice2', 'Secret-alice', '')] + [chat(server.http, None)]
        refusals.append(ask(server.http, 'POST', '/v1/chat/completions', {}, headers={'Authorization': 'Basic c2VjcmV0LWFsaWNl'}))
        assert {(answer.status, answer.text) for answer in refusals} == {(401, refusals[0].text)}, [answer.text for answer in refusals]
        assert refusals[0].json['error']['code'] == 'invalid_api_key' and refusals[0].headers['WWW-Authenticate'] == 'Bearer'
        assert ask(server.http, 'GET', '/v1/models').status == 401 and ask(server.http, 'GET', '/v1/models', key='secret-alice').status == 200
        assert '42' in chat(server.http, 'secret-alice').text
        wait_for('the tenant is accounted for', lambda: '"acme"' in server.get('/usage.json')[1])
        log = server.log()
        assert 'secret-' not in log and hashlib.sha256(b'secret-alice').hexdigest() not in log


def quotas_of_requests_and_of_tokens_are_kept_by_key():
    with Keys('few requests_per_minute=2', 'small tokens_per_minute=100', 'free') as keys, Server(*HTTP, '--api-keys', keys.path, ranks=1) as server:
        answers = [chat(server.http, 'secret-few', max_tokens=1) for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 200, 429], answers[-1].text
        assert answers[-1].json['error']['type'] == 'rate_limit_error' and 0 < int(answers[-1].headers['Retry-After']) <= 60
        assert chat(server.http, 'secret-small').status == 200
        limited = chat(server.http, 'secret-small')
        assert limited.status == 429 and int(limited.headers['Retry-After']) > 1, limited.text
        assert [chat(server.http, 'secret-free', max_tokens=1).status for _ in range(4)] == [200] * 4


def keys_change_with_their_file():
    with Keys('alice') as keys, Server(*HTTP, '--api-keys', keys.path, ranks=1) as server:
        assert ask(server.http, 'GET', '/v1/models', key='secret-alice').status == 200
        keys.write('bob')
        wait_for('bob may come in', lambda: ask(server.http, 'GET', '/v1/models', key='secret-bob').status == 200)
        assert ask(server.http, 'GET', '/v1/models', key='secret-alice').status == 401
        keys.write('carol', mode=0o644)
        wait_for('the log says why not', lambda: 'api_keys_unreadable' in server.log())
        assert ask(server.http, 'GET', '/v1/models', key='secret-bob').status == 200, 'those who had a key keep it'
        keys.write('carol')
        os.kill(server.children()['gateway'], signal.SIGHUP)
        wait_for('carol may come in', lambda: ask(server.http, 'GET', '/v1/models', key='secret-carol').status == 200)


def what_cannot_be_started_is_refused_in_one_line():
    def refused(code, word, *flags):
        try:
            with Server(*flags, ranks=1):
                pass
        except ServerEnded as ended:
            assert ended.code == code and word in ended.reason, (ended.code, ended.reason)
            return
        raise AssertionError(f'{flags} was accepted')

    refused(2, '--api-keys', '--http', '0.0.0.0:0')
    refused(2, '--http', '--http', 'somewhere:80')
    refused(2, '--http', '--api-keys', '/nowhere')
    refused(3, '/nowhere', *HTTP, '--api-keys', '/nowhere')
    with Keys('alice') as keys:
        keys.path.chmod(0o640)
        refused(2, 'chmod 600', *HTTP, '--api-keys', keys.path)
        keys.path.chmod(0o600)
        keys.path.write_text('alice nonsense\n')
        refused(2, 'line 1', *HTTP, '--api-keys', keys.path)
    with socket.create_server(('127.0.0.1', 0)) as taken:
        refused(6, 'another program has this port', '--http', f'127.0.0.1:{taken.getsockname()[1]}')


def other_machines_see_no_metrics_and_need_a_key():
    with Keys('alice') as keys, Server('--http', '0.0.0.0:0', '--api-keys', keys.path, '--http-metrics', '127.0.0.1:0', ranks=1) as server:
        address = server.http.replace('0.0.0.0', '127.0.0.1')
        assert chat(address).status == 401 and ask(address, 'GET', '/metrics', key='secret-alice').status == 404
        assert ask(address, 'GET', '/v1/models', key='secret-alice', headers={'Host': 'any.example'}).status == 200
        metrics = json.loads(server.ready_file.read_text())['http_metrics']
        assert 'althing_gateway_rejected_total{reason="key"} 1' in ask(metrics, 'GET', '/metrics').text
        assert ask(metrics, 'GET', '/ready').status == 200


def a_page_of_another_name_is_refused():
    with Server(*HTTP, ranks=1) as server:
        assert ask(server.http, 'GET', '/v1/models', headers={'Host': 'evil.example'}).status == 403
        simple = ask(server.http, 'POST', '/v1/chat/completions', {'messages': ADD}, headers={'Content-Type': 'text/plain'})
        assert simple.status == 415, 'what a form of another page could send'
        assert ask(server.http, 'OPTIONS', '/v1/chat/completions').status == 405


# --- clients that do not behave ---

def a_client_that_leaves_cancels_its_request():
    with Server(*HTTP, ranks=1) as server:
        stream = Stream(server.http).until(b'"reasoning"')
        stream.close()
        wait_for('its stream is cancelled', lambda: cancelled(server) == 1)
        half = Stream(server.http).until(b'"reasoning"')
        half.socket.shutdown(socket.SHUT_WR)
        wait_for('so is one that closed its side', lambda: cancelled(server) == 2)
        half.close()
        whole = Stream(server.http, stream=False)
        wait_for('the engine works', lambda: 'althing_gateway_open_requests 1' in ask(server.http, 'GET', '/metrics').text)
        whole.close()
        wait_for('and one that waited for a whole answer', lambda: cancelled(server) == 3)
        text = ask(server.http, 'GET', '/metrics').text
        assert 'althing_gateway_broken_off_total 3' in text and 'althing_gateway_open_requests 0' in text, text
        assert '42' in chat(server.http).text


def bytes_of_any_kind_are_answered_or_dropped_and_nobody_else_notices():
    post = b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n'
    with Server(*HTTP, ranks=1) as server:
        stream = Stream(server.http, max_tokens=400)
        for status, pieces in ((b'400', [b'junk\r\n\r\n']), (b'400', [bytes(range(256)) * 4 + b'\r\n\r\n']), (b'431', [b'GET / HTTP/1.1\r\nX: ' + b'a' * 20000 + b'\r\n\r\n']),
                               (b'411', [post + b'\r\n']), (b'413', [post + b'Content-Length: 99999999\r\n\r\n']), (b'400', [post + b'Content-Length: 1\r\nConnection: close\r\n\r\n{']),
                               (b'404', [b'GET /%00 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n']), (b'405', [b'DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n']),
                               (b'415', [b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}'])):
            answer = raw(server.http, *pieces)
            assert answer.startswith(b'HTTP/1.1 ' + status) and b'"error"' in answer and b'x-request-id' in answer, (pieces[0][:60], answer)
        for truncated in (b'GET /li', post + b'Content-Length: 50\r\n\r\n{"mess'):
            assert raw(server.http, truncated, half_close=True) == b'', truncated
        deep = json.dumps({'messages': ADD, 'metadata': 0})[:-2].encode() + b'[' * 100000 + b']' * 100000 + b'}'
        assert raw(server.http, post + b'Content-Length: %d\r\nConnection: close\r\n\r\n' % len(deep) + deep).startswith(b'HTTP/1.1 400')
        get = b'GET /live HTTP/1.1\r\nHost: localhost\r\n'
        assert raw(server.http, (get + b'\r\n') * 20 + get + b'Connection: close\r\n\r\n').count(b'{"state":"live"}') == 21, 'pipelined'
        assert raw(server.http, *[bytes([byte]) for byte in get + b'Connection: close\r\n\r\n']).startswith(b'HTTP/1.1 200')
        stream.until(b'data: [DONE]')
        assert server.children()['gateway'] and 'gateway_died' not in server.log()


def connections_are_bounded_and_kept():
    with Server(*HTTP, '--http-connections', 4, ranks=1) as server:
        kept = [http.client.HTTPConnection(server.http, timeout=30) for _ in range(4)]
        for _ in range(3):
            for connection in kept:
                connection.request('GET', '/live')
                assert connection.getresponse().read() == b'{"state":"live"}'
        answer = raw(server.http, b'GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n')
        assert answer.startswith(b'HTTP/1.1 503') and b'Retry-After' in answer, answer
        kept.pop().close()
        wait_for('there is room again', lambda: raw(server.http, b'GET /live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n').startswith(b'HTTP/1.1 200'))


def numbers_add_up():
    with Server(*HTTP, ranks=1) as server:
        used = [chat(server.http).json['usage'] for _ in range(2)]
        chat(server.http, temperature=9)
        ask(server.http, 'GET', '/nothing')
        text = ask(server.http, 'GET', '/metrics').text
        for line in ('responses_total{route="chat_completions",status="2xx"} 2', 'responses_total{route="chat_completions",status="4xx"} 1', 'responses_total{route="other",status="4xx"} 1',
                     'rejected_total{reason="invalid"} 1', 'rejected_total{reason="no_route"} 1', f'tokens_total{{kind="prompt"}} {sum(use["prompt_tokens"] for use in used)}',
                     f'tokens_total{{kind="completion"}} {sum(use["completion_tokens"] for use in used)}', 'first_event_seconds_count 2',
                     f'tokens_total{{kind="reasoning"}} {sum(use["completion_tokens_details"]["reasoning_tokens"] for use in used)}'):
            assert f'althing_gateway_{line}\n' in text, (line, text)


# --- deaths and ends ---

def readiness_follows_the_server():
    with Server(*HTTP, ranks=1) as server:
        assert state(server.http) == (200, 'ready')
        # A core alone may be back sooner than anybody asks again.
        for role in ('core', 'rank0'):
            os.kill(server.children()[role], signal.SIGKILL)
        wait_for('it is not ready', lambda: state(server.http)[0] == 503, 3)
        wait_for('and ready again', lambda: state(server.http) == (200, 'ready'))
        assert ask(server.http, 'GET', '/live').status == 200


def a_gateway_that_keeps_dying_is_left_alone_and_the_server_serves():
    with Server(*HTTP, '--restarts-max', 2, '--quarantine-seconds', 1, ranks=1) as server:
        for _ in range(3):
            victim = wait_for('a gateway', lambda: server.children().get('gateway'))
            os.kill(victim, signal.SIGKILL)
            wait_for('it is dead', lambda: server.children().get('gateway') != victim)
        wait_for('the log says so', lambda: 'gateway_left_alone' in server.log())
        with Client(server.endpoint) as client:
            client.submit('r', ADD)
            client.finish()
        wait_for('it is back', lambda: state(server.http) == (200, 'ready'))


def a_drain_lets_open_streams_end():
    with Server(*HTTP, '--drain-seconds', 60, ranks=1) as server:
        stream = Stream(server.http, max_tokens=600).until(b'"reasoning"')
        told = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        wait_for('it is not ready', lambda: state(server.http) == (503, 'draining'), 2)
        assert time.monotonic() - told < 1 * PATIENCE
        late = chat(server.http)
        assert late.status == 503 and late.headers['Retry-After'] and late.json['error']['code'] == 'draining', late.text
        stream.until(b'data: [DONE]')
        assert b'"finish_reason":"length"' in stream.text
        assert server.process.wait(20 * PATIENCE) == 0


def a_second_signal_ends_it_at_once_and_streams_hear_why():
    with Server(*HTTP, '--drain-seconds', 60, ranks=1) as server:
        stream = Stream(server.http).until(b'"reasoning"')
        server.process.send_signal(signal.SIGTERM)
        wait_for('it drains', lambda: state(server.http) == (503, 'draining'), 2)
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        stream.until(b'data: {"error"')
        assert server.process.wait(20) == 0 and time.monotonic() - began < 2 * PATIENCE


def a_gateway_that_is_held_up_still_says_the_last_words():
    with Server(*HTTP, '--drain-seconds', 60, ranks=1) as server:
        stream = Stream(server.http).until(b'"reasoning"')
        gateway = server.children()['gateway']
        core = server.children()['core']
        server.process.send_signal(signal.SIGTERM)
        wait_for('it drains', lambda: state(server.http) == (503, 'draining'), 2)
        os.kill(gateway, signal.SIGSTOP)
        server.process.send_signal(signal.SIGTERM)
        wait_for('the core has gone', lambda: not pathlib.Path(f'/proc/{core}').exists(), 2)
        time.sleep(0.4)  # how long it is held up; a busy machine does it too
        os.kill(gateway, signal.SIGCONT)
        stream.until(b'data: {"error"')
        assert server.process.wait(20) == 0


class Alone:
    """`althing gateway`, with the tiny model's tokenizer."""

    def __init__(self, connect, *flags):
        self.folder = tempfile.TemporaryDirectory(prefix='althing-gateway-')
        self.ready_file = pathlib.Path(self.folder.name) / 'ready.json'
        command = [BINARY, 'gateway', TINY, '--connect', connect, '--listen', '127.0.0.1:0', '--ready-file', self.ready_file, *flags]
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for('the gateway listens', self.ready_file.exists)
        self.http = json.loads(self.ready_file.read_text())['http']

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.folder.cleanup()


def alone_it_waits_for_its_server_and_outlives_it():
    with socket.create_server(('127.0.0.1', 0)) as free:
        port = free.getsockname()[1]
    with Alone(f'tcp://127.0.0.1:{port}', '--drain-seconds', '5') as gateway:
        assert ask(gateway.http, 'GET', '/live').status == 200
        assert state(gateway.http) == (503, 'starting')
        early = chat(gateway.http)
        assert early.status == 503 and early.headers['Retry-After'], early.text
        for _ in range(2):
            with Server('--bind', f'tcp://127.0.0.1:{port}', ranks=1):
                wait_for('it is ready', lambda: state(gateway.http) == (200, 'ready'))
                assert '42' in chat(gateway.http).text
            wait_for('it says that nobody is there', lambda: state(gateway.http) == (503, 'unreachable'))
        gateway.process.send_signal(signal.SIGTERM)
        assert gateway.process.wait(10 * PATIENCE) == 0 and not gateway.ready_file.exists()


def alone_a_second_signal_ends_streams_and_they_hear_why():
    with Server(ranks=1) as server, Alone(server.endpoint) as gateway:
        wait_for('it is ready', lambda: state(gateway.http) == (200, 'ready'))
        stream = Stream(gateway.http).until(b'"reasoning"')
        gateway.process.send_signal(signal.SIGTERM)
        wait_for('it drains', lambda: state(gateway.http) == (503, 'draining'), 2)
        gateway.process.send_signal(signal.SIGTERM)
        stream.until(b'data: {"error"')
        assert b'"draining"' in stream.text, stream.text[-300:]
        assert gateway.process.wait(2 * PATIENCE) == 0
        wait_for('the engine is told', lambda: server.metric('althing_requests_running') == 0)


if __name__ == '__main__':
    main(a_stream_that_waits_says_that_it_lives, a_list_of_prompts_is_answered_as_each_alone, without_a_right_key_everything_but_probes_is_refused_alike, quotas_of_requests_and_of_tokens_are_kept_by_key, keys_change_with_their_file, what_cannot_be_started_is_refused_in_one_line,
         other_machines_see_no_metrics_and_need_a_key, a_page_of_another_name_is_refused, a_client_that_leaves_cancels_its_request,
         bytes_of_any_kind_are_answered_or_dropped_and_nobody_else_notices, connections_are_bounded_and_kept, numbers_add_up, readiness_follows_the_server,
         a_gateway_that_keeps_dying_is_left_alone_and_the_server_serves, a_drain_lets_open_streams_end, a_second_signal_ends_it_at_once_and_streams_hear_why,
         a_gateway_that_is_held_up_still_says_the_last_words,
         alone_it_waits_for_its_server_and_outlives_it, alone_a_second_signal_ends_streams_and_they_hear_why)
