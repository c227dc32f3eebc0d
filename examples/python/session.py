"""One session with an Althing server: a DEALER socket, JSON frames, nothing but pyzmq. docs/protocol.md has the rules that this follows.

It promises that a stream ends: with `done`, or with an error when the server says so, is gone for good or falls silent. A connection that breaks is not an end:
it is made anew, and every open stream goes on behind the last message that came, without a gap or a double, also when the serving process died meanwhile.
"""
import json
import secrets
import time

import zmq
from zmq.utils.monitor import recv_monitor_message

HEADER = b'ALT1j'
PING_SECONDS = 1.0
SILENCE_SECONDS = 5.0
HELLO_SECONDS = 0.1  # between two hellos, and before a resume that was refused as too soon is tried again
ATTEMPTS_MAX = 10  # resumes in a row that bring a stream no further


class ServerError(Exception):
    """The server's own error, or ours about a server that is gone. `code` is one of those listed in docs/protocol.md."""

    def __init__(self, code, message):
        super().__init__(f'{code}: {message}')
        self.code, self.message = code, message


class Stream:
    """What must be known of an open request to go on with it over another connection."""

    def __init__(self, submit):
        self.submit = submit  # until it is accepted; then None
        self.sequence = self.attempts = 0
        self.credit = submit.get('credit') or 0
        self.again_at = None


class Session:
    def __init__(self, endpoint, name='althing-example/0.1'):
        self.endpoint, self.name, self.client_id = endpoint, name, secrets.token_hex(16)
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 50)
        self.socket.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        self.monitor = self.socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self.poller = zmq.Poller()
        self.poller.register(self.socket, zmq.POLLIN)
        self.poller.register(self.monitor, zmq.POLLIN)
        self.socket.connect(endpoint)
        self.heard = self.pinged = time.monotonic()
        self.greeted = 0.0
        self.connections = 0
        self.welcome, self.streams = None, {}
        self.hello()
        for _ in self.messages(until_welcome=True):
            pass

    def send(self, kind, **members):
        self.socket.send_multipart([HEADER, json.dumps({'type': kind, **members}, ensure_ascii=False).encode()])

    def submit(self, request_id, messages, **members):
        """members: tools, reasoning_effort, sampling, timeout_ms, credit, return_tokens, trace_top_m, tenant."""
        submit = {'request_id': request_id, 'messages': messages, **members}
        size, limit = len(json.dumps(submit, ensure_ascii=False).encode()) + 64, self.welcome['frame_bytes_max']
        if size > limit:
            raise ServerError('too_large', f'the request is {size} bytes, and the server takes {limit}; send less')
        self.streams[request_id] = Stream(submit)
        self.send('submit', **submit)

    def hello(self):
        if time.monotonic() - self.greeted >= HELLO_SECONDS:
            self.greeted = time.monotonic()
            self.send('hello', version_min=1, version_max=1, client_id=self.client_id, client_name=self.name)

    def messages(self, until_welcome=False):
        """All that the server says about requests, for ever, each message of a stream once and in order. Raises ServerError when the server is gone."""
        while not (until_welcome and self.welcome):
            ready = dict(self.poller.poll(100))
            if self.monitor in ready:
                recv_monitor_message(self.monitor)
                self.connections += 1
                if self.connections > 1:
                    self.greeted = 0.0
                    self.hello()
            if self.socket in ready:
                message = json.loads(self.socket.recv_multipart()[-1])
                self.heard = time.monotonic()
                message = self.take(message)
                if message:
                    yield message
            self.beat()

    def beat(self):
        now = time.monotonic()
        if now - self.heard > SILENCE_SECONDS:
            raise ServerError('unavailable', f'{self.endpoint} has not answered for {SILENCE_SECONDS:g} s; is `althing serve` running?')
        for request_id, stream in self.streams.items():
            if stream.again_at and now >= stream.again_at:
                self.ask_for(request_id, stream)
        if self.welcome and now - self.pinged > PING_SECONDS:
            self.pinged = now
            self.send('ping', nonce=1)

    def take(self, message):
        """The message if it is for the caller, None if it was about the connection or was here before."""
        if message['type'] == 'welcome':
            first, self.welcome = self.welcome is None, message
            for request_id, stream in self.streams.items():
                if not first:
                    self.ask_for(request_id, stream)
            return None
        if message['type'] == 'pong':
            if message['server_instance'] != self.welcome['server_instance']:
                self.hello()
            return None
        if not message['request_id']:
            # "Say hello first": the connection is new to the server. Anything else is about us.
            if message['error']['code'] != 'unavailable':
                raise ServerError(message['error']['code'], message['error']['message'])
            self.hello()
            return None
        stream = self.streams.get(message['request_id'])
        return self.in_order(message['request_id'], stream, message) if stream else None

    def in_order(self, request_id, stream, message):
        if message['type'] == 'accepted':
            if stream.submit is None:
                return None
            stream.submit = None
            return message
        if not message['sequence']:
            return self.refused(request_id, stream, message)
        if message['sequence'] <= stream.sequence:
            return None
        if message['sequence'] > stream.sequence + 1:
            return self.again(request_id, stream, {'code': 'corrupt', 'message': f'the stream has a gap after message {stream.sequence}', 'field': ''})
        stream.sequence += 1
        stream.submit, stream.attempts, stream.again_at = None, 0, None
        if message['type'] in ('done', 'error'):
            del self.streams[request_id]
        return message

    def refused(self, request_id, stream, message):
        """An error that is not part of the stream: about the submit, or about a resume."""
        error = message['error']
        if error['code'] == 'unavailable':
            self.hello()
            return None
        if stream.submit is None and error['code'] == 'busy':
            return self.again(request_id, stream, error)
        if stream.submit is None and error['code'] == 'not_found':
            message['error'] = {**error, 'code': 'core_lost', 'message': f'the server at {self.endpoint} does not know this request any more; submit it again'}
        del self.streams[request_id]
        return message

    def again(self, request_id, stream, error):
        """Asks for the rest of a stream a little later; the error when that has been tried often enough."""
        if stream.again_at:
            return None
        stream.attempts += 1
        if stream.attempts <= ATTEMPTS_MAX:
            stream.again_at = time.monotonic() + HELLO_SECONDS
            return None
        del self.streams[request_id]
        return {'type': 'error', 'request_id': request_id, 'sequence': 0, 'error': error}

    def ask_for(self, request_id, stream):
        """What is accepted is resumed; what may never have arrived is submitted again, which attaches to the request if it has."""
        stream.again_at = None
        if stream.submit is not None:
            self.send('submit', **stream.submit)
            return
        self.send('resume', request_id=request_id, last_sequence=stream.sequence)
        if stream.credit:
            self.send('grant', request_id=request_id, credit=stream.credit)

    def answer(self, request_id):
        """The events of one request (message_started, text, message_ended), each with the `choice` that it belongs to, then its `done`. Only for one request
        at a time."""
        for message in self.messages():
            if message.get('request_id') != request_id:
                continue
            if message['type'] == 'error':
                raise ServerError(message['error']['code'], message['error']['message'])
            if message['type'] == 'delta':
                yield from ({**event, 'choice': message.get('choice', 0)} for event in message['events'])
            if message['type'] == 'done':
                yield message
                return


def collect_choices(events):
    """The Harmony messages that a stream of events makes, by choice, and the closing `done`."""
    choices = {}
    for event in events:
        if event['type'] == 'done':
            return choices, event
        messages = choices.setdefault(event['choice'], [])
        if event['type'] == 'message_started':
            header = {key: event[key] for key in ('channel', 'recipient', 'content_type') if event[key]}
            messages.append({'role': event['role'], **header, 'content': ''})
        elif event['type'] == 'text':
            messages[event['index']]['content'] += event['text']
    return choices, None


def collect(events):
    """The messages of the first choice, ready to be sent back as history, and the closing `done`."""
    choices, done = collect_choices(events)
    return choices.get(0, []), done
