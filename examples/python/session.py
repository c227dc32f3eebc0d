"""One session with an Althing server: a DEALER socket, JSON frames, nothing but pyzmq. docs/protocol.md has the rules that this follows.

It promises that a stream ends: with `done`, or with ServerError when the server says so, dies, restarts or falls silent.
"""
import json
import secrets
import time

import zmq

HEADER = b'ALT1j'
PING_SECONDS = 1.0
SILENCE_SECONDS = 5.0


class ServerError(Exception):
    """The server's own error, or ours about a server that is gone. `code` is one of those listed in docs/protocol.md."""

    def __init__(self, code, message):
        super().__init__(f'{code}: {message}')
        self.code, self.message = code, message


class Session:
    def __init__(self, endpoint, name='althing-example/0.1'):
        self.endpoint = endpoint
        self.socket = zmq.Context.instance().socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 200)
        self.socket.connect(endpoint)
        self.heard = self.pinged = time.monotonic()
        self.instance = None
        self.send('hello', version_min=1, version_max=1, client_id=secrets.token_hex(16), client_name=name)
        self.welcome = next(self.messages())
        if self.welcome['type'] != 'welcome':
            raise ServerError('corrupt', f'the server answered hello with {self.welcome["type"]}')
        self.instance = self.welcome['server_instance']

    def send(self, kind, **members):
        self.socket.send_multipart([HEADER, json.dumps({'type': kind, **members}, ensure_ascii=False).encode()])

    def submit(self, request_id, messages, **members):
        """members: tools, reasoning_effort, sampling, timeout_ms, credit, return_tokens."""
        self.send('submit', request_id=request_id, messages=messages, **members)

    def messages(self):
        """All that the server says, for ever. Raises ServerError when it is gone or the session is at fault."""
        while True:
            if self.socket.poll(200):
                message = json.loads(self.socket.recv_multipart()[-1])
                self.heard = time.monotonic()
                if message['type'] == 'error' and not message['request_id']:
                    # "say hello first" means that the connection is new to the server: it has restarted, and our requests went with it.
                    if self.instance and message['error']['code'] == 'unavailable':
                        raise ServerError('core_lost', f'the server at {self.endpoint} has restarted; run this again')
                    raise ServerError(message['error']['code'], message['error']['message'])
                if message['type'] == 'pong' and message['server_instance'] != self.instance:
                    raise ServerError('core_lost', f'the server at {self.endpoint} has restarted; run this again')
                if message['type'] != 'pong':
                    yield message
            now = time.monotonic()
            if now - self.heard > SILENCE_SECONDS:
                raise ServerError('unavailable', f'{self.endpoint} has not answered for {SILENCE_SECONDS:g} s; is `althing serve` running?')
            if self.instance and now - self.pinged > PING_SECONDS:
                self.pinged = now
                self.send('ping', nonce=1)

    def answer(self, request_id):
        """The events of one request (message_started, text, message_ended), then its `done`. Only for one request at a time."""
        for message in self.messages():
            if message.get('request_id') != request_id:
                continue
            if message['type'] == 'error':
                raise ServerError(message['error']['code'], message['error']['message'])
            if message['type'] == 'delta':
                yield from message['events']
            if message['type'] == 'done':
                yield message
                return


def collect(events):
    """The Harmony messages that a stream of events makes, ready to be sent back as history, and the closing `done`."""
    messages = []
    for event in events:
        if event['type'] == 'message_started':
            header = {key: event[key] for key in ('channel', 'recipient', 'content_type') if event[key]}
            messages.append({'role': event['role'], **header, 'content': ''})
        elif event['type'] == 'text':
            messages[-1]['content'] += event['text']
        elif event['type'] == 'done':
            return messages, event
    return messages, None
