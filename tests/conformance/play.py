"""One play: a scripted server on a ROUTER socket, and the client under test as a process. A case tells the play what the server does, and asks it what the client did.

While a play waits for anything it answers pings, welcomes connections, and sends again what is asked for, as a server does; a case switches off what it wants to
do otherwise. Every frame of the client is checked: hello first on each connection, under one secret name, and no grant for what was not sent.
"""
import contextlib
import json
import os
import queue
import subprocess
import threading
import time

import zmq

from wire import NotAFrame, decode, encode

PATIENCE = float(os.environ.get('ALTHING_PATIENCE', '1'))
WAIT_SECONDS = 10.0
LINES_MAX = 100000


class Ledger:
    """What a server must know of one request: what it sent, and what it may send."""

    def __init__(self, submit):
        self.submit, self.sent, self.resumes, self.granted = submit, [], 0, 0
        self.window = submit.get('credit', 0)

    deltas = property(lambda self: sum(message['type'] == 'delta' for message in self.sent))
    credit = property(lambda self: self.window + self.granted - self.deltas)


class Play:
    def __init__(self, command, encoding, wait_seconds=WAIT_SECONDS):
        self.command, self.encoding, self.wait_seconds = command, encoding, wait_seconds * PATIENCE
        self.context = zmq.Context()
        self.port, self.router = None, None
        self.open()
        self.client, self.lines, self.output = None, [], queue.SimpleQueue()
        self.frames, self.taken = [], set()  # what the client sent, in order; the places of those that a case has seen
        self.ledgers, self.routes, self.client_ids = {}, {}, set()
        self.route = None
        self.heard_at = time.monotonic()
        # What the server does by itself.
        self.welcomes = self.pongs = self.resends = True
        self.later = False
        self.welcome = {'version': 1, 'server_instance': 'mock-1', 'model': 'mock', 'context_tokens_max': 2048, 'frame_bytes_max': 1 << 20,
                        'session_silence_ms_max': 15000}

    # --- the server

    def open(self):
        """Binds, the second time at the same port: a connection that was lost comes back."""
        self.router = self.context.socket(zmq.ROUTER)
        self.router.setsockopt(zmq.LINGER, 0)
        self.router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if self.port is None:
            self.port = self.router.bind_to_random_port('tcp://127.0.0.1')
            return
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                return self.router.bind(f'tcp://127.0.0.1:{self.port}')
            except zmq.ZMQError:
                assert time.monotonic() < deadline, 'the port is not free again'
                time.sleep(0.01)

    def lose_connection(self):
        """Closes and opens the door: the client has to come again, and nothing that was under way arrives."""
        self.router.close(linger=0)
        self.routes.clear()
        self.open()

    def send(self, message, later=None):
        self.send_parts(encode(message, self.encoding, self.later if later is None else later))

    def send_parts(self, parts):
        try:
            self.router.send_multipart([self.route, *parts])
        except zmq.ZMQError:
            pass  # the client has gone; whoever waits for it will see

    def accept(self, request_id='r1'):
        self.send({'type': 'accepted', 'request_id': request_id, 'prompt_tokens': 5, 'seed': '7'})

    def delta(self, events, request_id='r1', choice=0, tokens=(), send=True):
        """The next delta of a stream, when the client's credit allows it. send=False: it is lost on the way."""
        ledger = self.ledgers[request_id]
        if ledger.window:
            self.until(lambda: ledger.credit > 0, f'credit for {request_id}: the client has given {ledger.window} + {ledger.granted}')
        message = {'type': 'delta', 'request_id': request_id, 'sequence': len(ledger.sent) + 1, 'choice': choice, 'events': events, 'tokens': list(tokens)}
        return self.number(ledger, message, send)

    def done(self, request_id='r1', send=True, reason='stop', **members):
        message = {'type': 'done', 'request_id': request_id, 'sequence': len(self.ledgers[request_id].sent) + 1, 'reason': reason,
                   'usage': {'prompt_tokens': 5, 'completion_tokens': 3, 'preemptions': 0}, **members}
        return self.number(self.ledgers[request_id], message, send)

    def end_with(self, code, request_id='r1', message='as scripted', field=''):
        """A stream's last message, an error."""
        ledger = self.ledgers[request_id]
        return self.number(ledger, {'type': 'error', 'request_id': request_id, 'sequence': len(ledger.sent) + 1,
                                    'error': {'code': code, 'message': message, 'field': field}}, True)

    def number(self, ledger, message, send):
        ledger.sent.append(message)
        if send:
            self.send(message)
        return message

    def refuse(self, code, request_id='', message='as scripted', field=''):
        """An error that is no part of a stream."""
        self.send({'type': 'error', 'request_id': request_id, 'sequence': 0, 'error': {'code': code, 'message': message, 'field': field}})

    # --- what the client sends

    def take_frame(self):
        parts = self.router.recv_multipart()
        self.route, self.heard_at = parts[0], time.monotonic()
        try:
            message, encoding = decode(parts[1:])
        except NotAFrame as reason:
            raise AssertionError(f'the client sent no frame: {reason}') from None
        assert encoding == self.encoding, f'the client was told to speak {self.encoding}, and spoke {encoding}'
        self.frames.append(message)
        getattr(self, 'on_' + message['type'], self.on_unknown)(message)

    def on_unknown(self, message):
        raise AssertionError(f'the client sent a message of the type {message["type"]!r}')

    def known(self, message):
        """Whether this connection has said hello. The server's answer to one that has not is that of the real one."""
        if self.route in self.routes:
            return True
        self.refuse('unavailable', message.get('request_id', ''), 'this connection has no session; say hello first')
        return False

    def on_hello(self, message):
        assert message['version_min'] <= message['version_max'] and 16 <= len(message['client_id']) <= 128, message
        self.client_ids.add(message['client_id'])
        assert len(self.client_ids) == 1, 'the client came back under another client_id'
        if self.welcomes:
            self.routes[self.route] = True
            self.send({'type': 'welcome', **self.welcome})

    def on_ping(self, message):
        if self.known(message) and self.pongs:
            self.send({'type': 'pong', 'nonce': message['nonce'], 'server_instance': self.welcome['server_instance']})

    def on_submit(self, message):
        if self.known(message):
            kept = self.ledgers.setdefault(message['request_id'], Ledger(message))
            assert kept.submit['messages'] == message['messages'], 'the same request_id was submitted with other messages'

    def on_grant(self, message):
        if not self.known(message):
            return
        ledger = self.ledgers[message['request_id']]
        ledger.granted += message['credit']
        most = ledger.deltas + ledger.window * ledger.resumes
        assert ledger.granted <= most, f'{ledger.granted} granted when {ledger.deltas} deltas were sent, a window of {ledger.window}, {ledger.resumes} resumes'

    def on_cancel(self, message):
        self.known(message)

    def on_resume(self, message):
        if not self.known(message):
            return
        assert message['request_id'] in self.ledgers, f'a resume of {message["request_id"]}, which this server never got'
        ledger = self.ledgers[message['request_id']]
        ledger.resumes += 1
        if self.resends:
            for kept in ledger.sent[message['last_sequence']:]:
                self.send(kept)

    # --- the client under test

    def start(self, requests=None, **options):
        """Starts the client with requests (one by default) and waits for its submits unless submits=False."""
        wait = options.pop('submits', True)
        requests = requests or [request()]
        self.client = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1)
        threading.Thread(target=self.read_output, args=(self.client.stdout,), daemon=True).start()
        self.errors = []
        threading.Thread(target=lambda: self.errors.extend(self.client.stderr), daemon=True).start()
        self.say({'endpoint': f'tcp://127.0.0.1:{self.port}', 'encoding': self.encoding, 'silence_ms': 3000, 'step': False, 'requests': requests, **options})
        for each in requests if wait else ():
            self.expect('submit', each['request_id'])

    def read_output(self, stream):
        for line in stream:
            self.output.put(line)
        self.output.put(None)

    def say(self, value):
        self.client.stdin.write(json.dumps(value) + '\n')
        self.client.stdin.flush()

    def take_lines(self):
        while not self.output.empty():
            line = self.output.get()
            if line is None:
                self.lines.append({'event': 'exit', 'request_id': ''})
                continue
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                raise AssertionError(f'the client wrote what is no JSON: {line[:200]!r}') from None
            assert len(self.lines) < LINES_MAX, 'the client writes without an end'

    def pump(self):
        """Everything that has come, for at most 10 ms."""
        if self.router.poll(10):
            self.take_frame()
        self.take_lines()

    def until(self, condition, what):
        deadline = time.monotonic() + self.wait_seconds
        while not condition():
            assert time.monotonic() < deadline, f'not within {self.wait_seconds:g} s: {what}'
            exited = any(line['event'] == 'exit' for line in self.lines)
            assert not exited or self.router.poll(0), f'the client ended before: {what}; it said {"".join(self.errors)[-600:]!r}'
            self.pump()

    def expect(self, kind, request_id=None):
        """The next frame of this kind that was not expected before."""
        def find():
            for place, frame in enumerate(self.frames):
                if place not in self.taken and frame['type'] == kind and request_id in (None, frame.get('request_id')):
                    return place + 1
            return 0
        self.until(find, f'a {kind} of {request_id or "the client"}')
        place = find() - 1
        self.taken.add(place)
        return self.frames[place]

    def count(self, kind):
        return sum(frame['type'] == kind for frame in self.frames)

    def heard(self, event, request_id='r1', count=1):
        """Waits until the client has written so many of these lines."""
        def lines():
            return [line for line in self.lines if line['event'] == event and line['request_id'] == request_id]
        self.until(lambda: len(lines()) >= count, f'{count} lines {event} of {request_id or "the session"}')
        return lines()[count - 1]

    def finish(self):
        """Waits for the client's end, and checks that every request has ended exactly once, with nothing behind."""
        deadline = time.monotonic() + self.wait_seconds
        while not any(line['event'] == 'exit' for line in self.lines):
            assert time.monotonic() < deadline, f'the client did not end within {self.wait_seconds:g} s'
            self.pump()
        code = self.client.wait(WAIT_SECONDS)
        assert code == 0, f'the client ended with {code}: {"".join(self.errors)[-600:]}'
        for request_id in self.ledgers:
            lines = [line for line in self.lines if line['request_id'] == request_id]
            ends = [place for place, line in enumerate(lines) if line['event'] in ('done', 'error')]
            assert len(ends) == 1, f'{request_id} ended {len(ends)} times'
            assert ends[0] == len(lines) - 1, f'{request_id} went on behind its end'

    def close(self):
        if self.client is not None and self.client.poll() is None:
            self.client.kill()
        if self.client is not None:
            self.client.wait()
            with contextlib.suppress(BrokenPipeError):  # it was gone before it had read everything
                self.client.stdin.close()
        self.router.close(linger=0)
        self.context.term()

    # --- what the client made of it

    def text(self, request_id='r1', choice=0):
        """{index: text} of a choice."""
        texts = {}
        for line in self.lines:
            if line['event'] == 'text' and line['request_id'] == request_id and line['choice'] == choice:
                texts[line['index']] = texts.get(line['index'], '') + line['text']
        return texts

    def end(self, request_id='r1'):
        return next((line for line in self.lines if line['request_id'] == request_id and line['event'] in ('done', 'error')), None)


def request(request_id='r1', credit=8, content='hello', **members):
    return {'request_id': request_id, 'submit': {'messages': [{'role': 'user', 'content': content}], 'credit': credit, 'sampling': {'temperature': 0}}, **members}


def started(index=0, channel='final', recipient=''):
    return {'type': 'message_started', 'index': index, 'role': 'assistant', 'channel': channel, 'recipient': recipient, 'content_type': ''}


def text(words, index=0):
    return {'type': 'text', 'index': index, 'text': words}


def ended(index=0):
    return {'type': 'message_ended', 'index': index}
