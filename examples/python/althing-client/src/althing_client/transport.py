"""All that both clients need of ZeroMQ. Options whose defaults hurt are set here: a bounded linger, heartbeats on the connection, quick reconnection, a bound on
what the peer may announce."""
from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from .errors import AlthingError, Denied, InvalidArgument
from .session import Session

LINGER_MS = 200  # how long the last frames (a cancel) may take to leave
HEARTBEAT_MS, HEARTBEAT_TIMEOUT_MS = 1000, 3000
RECONNECT_MS, RECONNECT_MS_MAX = 50, 1000
FRAME_BYTES_MAX = 64 << 20
FRAMES_AT_ONCE = 1000
HEARD = (zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL |
         zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
# A server that dies breaks a handshake off without a word, and so does one that wants another key: it is taken for the second when it goes on.
BROKEN_OFF_MAX = 3


def key_in(path: str | os.PathLike[str], word: str) -> str:
    """The key in a file that `althing keys new` made: NAME.pub has it after role and name, NAME.key after the word secret."""
    try:
        with open(path, encoding='ascii') as file:
            if word == 'secret' and os.fstat(file.fileno()).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise InvalidArgument(f'{path} can be read by others; chmod 600 {path}', 'key')
            words = next((line.split() for line in file if line.strip() and not line.startswith('# ')), [])
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f'{path} cannot be read: {error}', 'key') from None
    if (words[:1] == ['secret']) != (word == 'secret') or len(words) < 2 + (word != 'secret'):
        raise InvalidArgument(f'{path} holds no {word} key', 'key')
    return words[1 if word == 'secret' else 2]


@dataclass(frozen=True, slots=True)
class CurveKeys:
    """For servers that ask for keys: the server's public one, and this client's pair, as Z85 text of 40 characters each."""

    server: str
    public: str
    secret: str

    @classmethod
    def load(cls, server_key: str | os.PathLike[str], key: str | os.PathLike[str]) -> CurveKeys:
        """From the server's .pub file and this client's .key file. Raises InvalidArgument."""
        secret = key_in(key, 'secret')
        return cls(key_in(server_key, 'public'), zmq.curve_public(secret.encode()).decode(), secret)

    def __repr__(self) -> str:
        return f'CurveKeys(server={self.server!r}, public={self.public!r})'


def readable(source: zmq.Socket[Any]) -> bool:
    return bool(int(source.getsockopt(zmq.EVENTS)) & zmq.POLLIN)


class Transport:
    """A DEALER socket with its monitor. Belongs to whoever polls it."""

    def __init__(self, endpoint: str, curve: CurveKeys | None) -> None:
        self.context: zmq.Context[Any] = zmq.Context()
        self.refusal: AlthingError | None = None  # why the server will never let us in, once it has said so: ZeroMQ tries no more then
        self.encrypted = curve is not None
        self.broken_off = 0
        self.socket = self.context.socket(zmq.DEALER)
        options = {zmq.LINGER: LINGER_MS, zmq.HEARTBEAT_IVL: HEARTBEAT_MS, zmq.HEARTBEAT_TIMEOUT: HEARTBEAT_TIMEOUT_MS, zmq.RECONNECT_IVL: RECONNECT_MS,
                   zmq.RECONNECT_IVL_MAX: RECONNECT_MS_MAX, zmq.MAXMSGSIZE: FRAME_BYTES_MAX}
        for option, value in options.items():
            self.socket.setsockopt(option, value)
        try:
            if curve:
                self.socket.curve_serverkey, self.socket.curve_publickey, self.socket.curve_secretkey = (
                    key.encode() for key in (curve.server, curve.public, curve.secret))
            self.monitor = self.socket.get_monitor_socket(HEARD)
            self.socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.context.destroy(linger=0)
            raise InvalidArgument(f'cannot connect to {endpoint!r}: {error}; an endpoint looks like tcp://127.0.0.1:4550', 'endpoint') from None

    def flush(self, session: Session) -> bool:
        """Sends what waits. False: the queue is full, try again soon."""
        while session.outgoing:
            try:
                self.socket.send_multipart(session.outgoing[0], zmq.NOBLOCK)
            except zmq.Again:
                return False
            session.outgoing.popleft()
        return True

    def handshakes(self) -> Iterator[None]:
        while readable(self.monitor):
            event = recv_monitor_message(self.monitor, zmq.NOBLOCK)['event']
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.broken_off = 0
                yield
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self.broken_off += 1
                if self.broken_off == BROKEN_OFF_MAX:
                    self.refusal = Denied('the server breaks handshakes off; ' + (
                        'is it the one whose key was given?' if self.encrypted else 'if it wants keys, give its public one and your own (--server-key, --key)'), 'key')
            elif event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self.refusal = Denied("the server does not let this key in; ask its operator to allow it (`althing keys allow`)", 'key')
            elif self.encrypted:
                self.refusal = Denied('this server speaks without encryption, and keys were given; leave them out, or name another server', 'key')
            else:
                self.refusal = Denied('this server lets nobody in without a key; give its public one and your own (--server-key, --key)', 'key')

    def frames(self) -> Iterator[list[bytes]]:
        """What has come, at most FRAMES_AT_ONCE."""
        for _ in range(FRAMES_AT_ONCE):
            try:
                yield self.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return

    def close(self) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close()
        self.context.term()
