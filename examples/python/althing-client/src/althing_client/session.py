"""One session with a server without any IO: bytes in, bytes and events out, the time is an argument. Both clients of this package are thin layers over it.

It keeps three promises about every stream, whatever the connection does: what comes out is messages 1, 2, 3 … without a gap or a repeat; it ends exactly once,
with `Done` or an `AlthingError`; and the server may send no more than what was consumed plus one window. docs/protocol.md has the rules that this follows.
"""
from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .codec import HEADER, Codec, Decoders, Unreadable
from .errors import AlthingError, Cancelled, CoreLost, Corrupt, InvalidArgument, TooLarge, Unavailable, VersionMismatch
from .messages import Accepted, Delta, Done, Welcome, accepted_of, delta_of, done_of, failure_of, welcome_of
from .stream_order import StreamOrder, Verdict

VERSION_MIN = VERSION_MAX = 1
PING_SECONDS = 1.0  # or a third of what the server allows
HELLO_SECONDS = 0.1  # between two hellos, and before a resume that was refused as too soon
FAR = 1e18  # never
REFUSALS_MAX = 20  # of resumes, in a row

Item = Accepted | Delta | Done | AlthingError


@dataclass(slots=True)
class Open:
    """What must be known of a request to go on with it over another connection."""

    submit: bytes  # the body, sent again until the server is known to have it
    credit: int
    opened: float
    accepted: bool = False
    cancelled: bool = False
    abandoned: bool = False  # nobody listens any more; it is kept until it ends
    consumed: int = 0  # deltas since the last grant
    order: StreamOrder = field(default_factory=StreamOrder)
    again_at: float | None = None
    asked_at: float = -1e9
    refusals: int = 0
    # What was sent before the hello of a connection is answered with `unavailable`. Asked again behind a welcome, the same answer is meant.
    stranger: str = ''  # '', 'greeting' or 'asked again'


class Session:
    """Feed it with `connected`, `receive` and `tick`, send what `outgoing` holds, hand on what `events` holds, and tick again at `wake_at`.

    `outgoing`: deque of [header, body]. `events`: deque of (request id, Item). `welcome` is None until the server has answered. `failure` is why there is no
    session, and then there will be none. Times are seconds of any clock that does not go back.
    """

    def __init__(self, codec: Codec, now: float, *, name: str, endpoint: str, silence_s: float, client_id: str = '') -> None:
        self.codec, self.decoders, self.name, self.endpoint, self.silence_s = codec, Decoders(codec), name, endpoint, silence_s
        self.client_id = client_id or secrets.token_hex(16)
        self.outgoing: deque[list[bytes]] = deque()
        self.events: deque[tuple[str, Item]] = deque()
        self.welcome: Welcome | None = None
        self.failure: AlthingError | None = None
        self.streams: dict[str, Open] = {}
        self._header = HEADER + codec.letter
        self._connections = 0
        self._greeted = -1e9
        self._greeting = self._want_hello = False
        self._asked: float | None = None  # since when the server owes an answer
        self._next_ping = now + PING_SECONDS
        self._pings = self._made = 0
        self._greet(now)

    # --- what the IO layer tells

    def connected(self, now: float) -> None:
        """The transport has a connection, the first one or another. Another one is a stranger to the server until it has said hello."""
        self._connections += 1
        if self._connections > 1:
            self._greeted = -1e9
            for stream in self.streams.values():
                stream.stranger = ''
            self._greet(now)

    def receive(self, parts: list[bytes], now: float) -> None:
        """One ZeroMQ message."""
        self._asked = None
        try:
            message = self.decoders.decode(parts)
            self._take(message, now)
        except (Unreadable, KeyError, TypeError, ValueError, AttributeError):
            # It may have been part of any stream.
            for request_id, stream in list(self.streams.items()):
                self._act(request_id, stream, stream.order.ask(now), now)

    def tick(self, now: float) -> None:
        if self.failure:
            return
        if self._asked is not None and now - self._asked > self.silence_s:
            self._fall_silent(now)
        if self._want_hello:
            self._greet(now)
        for request_id, stream in list(self.streams.items()):
            if stream.again_at is not None and now >= stream.again_at:
                self._ask_for(request_id, stream, now)
            elif stream.order.retry_at is not None and now >= stream.order.retry_at:
                self._act(request_id, stream, stream.order.ask(now), now)
        if now >= self._next_ping:
            self._next_ping = now + self._ping_seconds()
            if self.welcome is None:
                self._greet(now)
            else:
                self._pings += 1
                self._ask({'type': 'ping', 'nonce': self._pings}, now)

    def wake_at(self) -> float:
        """When `tick` has something to do, unless something comes before."""
        if self.failure:
            return FAR
        times = [self._next_ping]
        times += [self._greeted + HELLO_SECONDS] if self._want_hello else []
        times += [self._asked + self.silence_s] if self._asked is not None else []
        for stream in self.streams.values():
            times += [at for at in (stream.again_at, stream.order.retry_at) if at is not None]
        return min(times)

    # --- what the user wants

    def submit(self, members: Mapping[str, Any], now: float, request_id: str = '') -> str:
        """Opens a stream; returns its id. Raises InvalidArgument for an id that is open, TooLarge for what the server would not read, and `failure`."""
        if self.failure:
            raise self.failure
        if not request_id:
            self._made += 1
            request_id = f'r{self._made}-{self.client_id[:8]}'
        if request_id in self.streams:
            raise InvalidArgument(f'request {request_id} is open already; choose another id, or none', 'request_id', request_id)
        body = self.codec.encode({'type': 'submit', 'request_id': request_id, **members})
        limit = self.welcome.frame_bytes_max if self.welcome else 0
        if limit and len(body) > limit:
            raise TooLarge(f'the request is {len(body)} bytes, and the server takes {limit}; send less', 'messages', request_id)
        self.streams[request_id] = stream = Open(body, int(members.get('credit') or 0), now)
        if self.welcome:
            self._ask_for(request_id, stream, now)
            stream.asked_at = -1e9  # only what asks again must keep its distance
        return request_id

    def cancel(self, request_id: str, abandon: bool = False) -> None:
        """Asks the server to end it; its end still comes, as `Cancelled` or as whatever was faster. abandon: nobody wants to hear it."""
        stream = self.streams.get(request_id)
        if stream is None:
            return
        stream.abandoned = stream.abandoned or abandon
        if not stream.cancelled:
            stream.cancelled = True
            self._send({'type': 'cancel', 'request_id': request_id})

    def consume(self, request_id: str, deltas: int = 1) -> None:
        """The user is done with so many deltas: the server may send others. Half a window at a time, so that few grants travel and it never runs dry."""
        stream = self.streams.get(request_id)
        if stream is None or not stream.credit:
            return
        stream.consumed += deltas
        if stream.consumed >= max(1, stream.credit // 2):
            self._send({'type': 'grant', 'request_id': request_id, 'credit': stream.consumed})
            stream.consumed = 0

    def close(self) -> None:
        """Nobody else can resume what is open, because nobody else has the client id: gives the server its memory back."""
        for request_id in list(self.streams):
            self.cancel(request_id, abandon=True)

    # --- inside

    def _send(self, message: Mapping[str, Any]) -> None:
        self.outgoing.append([self._header, self.codec.encode(message)])

    def _ask(self, message: Mapping[str, Any], now: float) -> None:
        """For what is answered at once whatever happens."""
        self._send(message)
        self._asked = now if self._asked is None else self._asked

    def _greet(self, now: float) -> None:
        self._want_hello = now - self._greeted < HELLO_SECONDS
        if not self._want_hello:
            self._greeted, self._greeting = now, True
            self._ask({'type': 'hello', 'version_min': VERSION_MIN, 'version_max': VERSION_MAX, 'client_id': self.client_id, 'client_name': self.name}, now)

    def _ping_seconds(self) -> float:
        allowed = self.welcome.session_silence_ms_max / 3000 if self.welcome and self.welcome.session_silence_ms_max else PING_SECONDS
        return max(0.001, min(PING_SECONDS, allowed, self.silence_s / 5))

    def _tell(self, request_id: str, stream: Open, item: Item) -> None:
        if isinstance(item, (Done, AlthingError)):
            del self.streams[request_id]
        if not stream.abandoned:
            self.events.append((request_id, item))

    def _end_all(self, kind: type[AlthingError], message: str, now: float, opened_before: float) -> None:
        for request_id, stream in list(self.streams.items()):
            if stream.opened <= opened_before:
                self._tell(request_id, stream, kind(message, '', request_id))

    def refused(self, error: AlthingError, now: float) -> None:
        """The server has said that it will never let this client in."""
        self._fail(error, now)

    def _fail(self, error: AlthingError, now: float) -> None:
        self.failure = error
        self._end_all(type(error), error.message, now, now)

    def _fall_silent(self, now: float) -> None:
        message = f'{self.endpoint} has not answered for {self.silence_s:g} s; is `althing serve` running there?'
        self._asked = now
        if self.welcome is None:
            self._fail(Unavailable(message, 'endpoint'), now)
        self._end_all(Unavailable, message, now, now - self.silence_s)

    def _ask_for(self, request_id: str, stream: Open, now: float) -> None:
        """What the server has is resumed; what may never have arrived is submitted again, which attaches to the request if it has."""
        stream.again_at, stream.asked_at = None, now
        if not stream.accepted:
            self.outgoing.append([self._header, stream.submit])
            self._asked = now if self._asked is None else self._asked
            return
        self._send({'type': 'resume', 'request_id': request_id, 'last_sequence': stream.order.last})
        if stream.credit:
            # Grants may have gone down with a connection. A window too many does no harm, one too few would stall the stream.
            self._send({'type': 'grant', 'request_id': request_id, 'credit': stream.credit})
            stream.consumed = 0

    def _act(self, request_id: str, stream: Open, verdict: Verdict, now: float) -> None:
        if verdict is Verdict.BROKEN:
            self._tell(request_id, stream, Corrupt(f'the stream has a gap after message {stream.order.last} that resumes did not close', '', request_id))
        elif verdict is Verdict.RESUME and now - stream.asked_at < HELLO_SECONDS:
            stream.again_at = stream.asked_at + HELLO_SECONDS  # a server refuses resumes that follow each other closely
        elif verdict is Verdict.RESUME:
            self._ask_for(request_id, stream, now)

    def _take(self, message: dict[str, Any], now: float) -> None:
        kind, request_id = message['type'], message.get('request_id') or ''
        if kind == 'version':
            text = f'the server at {self.endpoint} speaks {message["header"]!r}, another form of frames; update one side'
            self._fail(VersionMismatch(text, 'version'), now)
        elif kind == 'welcome':
            self._on_welcome(welcome_of(message), now)
        elif kind == 'pong':
            if self.welcome and message.get('server_instance') != self.welcome.server_instance:
                self._greet(now)
        elif kind == 'error' and not request_id:
            self._on_session_error(failure_of(message.get('error'), ''), now)
        elif kind in ('accepted', 'delta', 'done', 'error') and (stream := self.streams.get(request_id)):
            self._on_stream(request_id, stream, message, now)

    def _on_welcome(self, welcome: Welcome, now: float) -> None:
        self._greeting = self._want_hello = False
        if not VERSION_MIN <= welcome.version <= VERSION_MAX:
            text = f'the server chose version {welcome.version} of the protocol; this client speaks {VERSION_MIN} to {VERSION_MAX}'
            return self._fail(VersionMismatch(text, 'version'), now)
        self.welcome = welcome
        self._next_ping = min(self._next_ping, now + self._ping_seconds())
        for request_id, stream in list(self.streams.items()):
            stream.stranger = 'asked again' if stream.stranger == 'greeting' else stream.stranger
            if stream.cancelled:
                self._send({'type': 'cancel', 'request_id': request_id})
            if stream.cancelled and not stream.accepted:
                self._tell(request_id, stream, Cancelled('cancelled before the server was known to have it', '', request_id))
            else:
                self._ask_for(request_id, stream, now)

    def _on_session_error(self, error: AlthingError, now: float) -> None:
        if isinstance(error, Unavailable):
            self._greet(now)  # the connection is new to the server, or it is starting
        elif self._greeting:
            self._fail(error, now)  # the answer to hello; others are about a frame that a stream will miss

    def _on_stream(self, request_id: str, stream: Open, message: dict[str, Any], now: float) -> None:
        kind = message['type']
        if kind == 'accepted':
            if not stream.accepted:
                stream.accepted, stream.stranger = True, ''
                self._tell(request_id, stream, accepted_of(message))
            return
        sequence = int(message.get('sequence') or 0)
        if not sequence:
            if kind != 'error':
                raise Unreadable('a message of a stream without its number')
            return self._on_refusal(request_id, stream, failure_of(message.get('error'), request_id), now)
        # Made before the number counts: what cannot be read was not received.
        item: Item = delta_of(message) if kind == 'delta' else done_of(message) if kind == 'done' else failure_of(message.get('error'), request_id)
        verdict = stream.order.on(sequence, now)
        if verdict is Verdict.DELIVER:
            stream.accepted, stream.stranger, stream.refusals, stream.again_at = True, '', 0, None
            self._tell(request_id, stream, item)
        else:
            self._act(request_id, stream, verdict, now)

    def _on_refusal(self, request_id: str, stream: Open, error: AlthingError, now: float) -> None:
        """An error that is no part of the stream: about the submit, the resume, or a connection that the server does not know."""
        if error.code == 'unavailable' and stream.stranger != 'asked again':
            stream.stranger = 'greeting'
            return self._greet(now)
        if error.code == 'busy' and stream.accepted and stream.refusals < REFUSALS_MAX:
            stream.refusals += 1
            stream.again_at = now + HELLO_SECONDS
            return
        if error.code == 'not_found' and stream.accepted:
            error = Cancelled('the server does not know it any more', '', request_id) if stream.cancelled else CoreLost(
                f'the server at {self.endpoint} does not know request {request_id} any more ({error.message}); submit it again', '', request_id)
        self._tell(request_id, stream, error)
