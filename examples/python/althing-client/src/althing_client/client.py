"""The client for threads.

    with Client('tcp://127.0.0.1:4550') as client:
        print(client.ask('12 + 30').text)

Every method may be called from any thread at any time: one lock guards the session, and a thread of the client's own does all IO, so pings go out and streams
survive reconnections while nobody iterates. One stream is for one thread at a time. A client does not survive fork().
"""
from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import zmq

from .codec import codec_of
from .errors import AlthingError, Internal, Unavailable
from .messages import Accepted, Done, Event, Welcome
from .reply import Reply
from .session import Session
from .stream import Inbox, Prompt, submit_members
from .transport import CurveKeys, Transport

ENDPOINT = 'tcp://127.0.0.1:4550'
SILENCE_SECONDS = 5.0
FULL_QUEUE_SECONDS = 0.05
WAIT_SECONDS_MAX = 10.0


class Stream:
    """One request. Iterate over it for its events; leaving the loop early cancels the request. Iteration raises the AlthingError that the stream ends with, whose
    `reply` has what came before."""

    def __init__(self, client: Client, request_id: str, changed: threading.Condition) -> None:
        self.request_id = request_id
        self._client, self._changed, self._inbox = client, changed, Inbox()

    @property
    def reply(self) -> Reply:
        """What has been iterated over so far."""
        return self._inbox.reply

    @property
    def accepted(self) -> Accepted | None:
        return self._inbox.reply.accepted

    @property
    def done(self) -> Done | None:
        """How it ended, when it has ended well and was read to its end."""
        return self._inbox.reply.done

    def __iter__(self) -> Iterator[Event]:
        try:
            while (event := self._next()) is not None:
                yield event
        finally:
            self.close()

    def read(self) -> Reply:
        """Everything up to the end."""
        for _ in self:
            pass
        return self.reply

    def cancel(self) -> None:
        """Asks the server to end it. Go on reading: it ends with `Cancelled`, or with what was faster."""
        self._client._cancel(self, abandon=False)

    def close(self) -> None:
        """Cancels it if it is not over, and hears no more of it."""
        if not self._inbox.over:
            self._client._cancel(self, abandon=True)

    def _next(self) -> Event | None:
        with self._changed:
            while True:
                event, consumed = self._inbox.take()
                self._client._consume(self.request_id, consumed)
                if event is not None:
                    return event
                if self._inbox.over:
                    if self._inbox.error:
                        raise self._inbox.error
                    return None
                self._changed.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Client:
    """Connects at once. Raises Unavailable when nobody answers within silence_s seconds, VersionMismatch and what else the server has against us.

    encoding: "json", or "capnp" (needs pycapnp). silence_s: a server that answers no ping for so long is gone, and open streams end with Unavailable.
    """

    def __init__(self, endpoint: str = ENDPOINT, *, encoding: str = 'json', name: str = 'althing-client.py/0.1', silence_s: float = SILENCE_SECONDS,
                 curve: CurveKeys | None = None) -> None:
        self.endpoint = endpoint
        self._session = Session(codec_of(encoding), time.monotonic(), name=name, endpoint=endpoint, silence_s=silence_s)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._streams: dict[str, Stream] = {}
        self._closing = False
        self._transport = Transport(endpoint, curve)
        self._bell, self._ear = socket.socketpair()
        self._bell.setblocking(False)
        self._ear.setblocking(False)
        self._thread = threading.Thread(target=self._run, name='althing-client', daemon=True)
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._session.welcome or self._session.failure)
            failure = self._session.failure
        if failure:
            self.close()
            raise failure

    @property
    def server(self) -> Welcome:
        """What the server said of itself, last."""
        assert self._session.welcome is not None
        return self._session.welcome

    def stream(self, prompt: Prompt, *, request_id: str = '', **options: Any) -> Stream:
        """Starts a request; `submit_members` has the options. An id that is given and was used before by this client attaches to that request.

        Raises InvalidArgument, TooLarge, or why there is no session; whatever the server finds wrong is raised by iterating.
        """
        members = submit_members(prompt, **options)
        with self._lock:
            if self._closing:
                raise Unavailable('this client is closed')
            request_id = self._session.submit(members, time.monotonic(), request_id)
            stream = self._streams[request_id] = Stream(self, request_id, threading.Condition(self._lock))
        self._ring()
        return stream

    def ask(self, prompt: Prompt, **options: Any) -> Reply:
        """Starts a request and waits for all of the answer. Options as for `stream`."""
        return self.stream(prompt, **options).read()

    def close(self) -> None:
        """Cancels what is open and ends the connection. Streams that others still read end with Unavailable."""
        with self._lock:
            first, self._closing = not self._closing, True
            if first:
                self._session.close()
        self._ring()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- called by streams

    def _cancel(self, stream: Stream, abandon: bool) -> None:
        with self._lock:
            self._session.cancel(stream.request_id, abandon)
            if abandon:
                stream._inbox.over = True
                self._streams.pop(stream.request_id, None)
                stream._changed.notify_all()
        self._ring()

    def _consume(self, request_id: str, deltas: int) -> None:
        if deltas:
            self._session.consume(request_id, deltas)
            if self._session.outgoing:
                self._ring()

    def _ring(self) -> None:
        # Full, or closed already: in both cases the thread needs no bell.
        with contextlib.suppress(OSError):
            self._bell.send(b'!')

    # --- the thread

    def _run(self) -> None:
        poller = zmq.Poller()
        for source in (self._transport.socket, self._transport.monitor, self._ear):
            poller.register(source, zmq.POLLIN)
        error: AlthingError = Unavailable('this client was closed')
        try:
            while self._turn(poller):
                pass
        except Exception as failure:  # a bug: whoever waits must hear of it
            error = Internal(f'the client failed: {failure!r}')
        with self._lock:
            self._closing = True
            self._session.failure = self._session.failure or error
            for request_id, stream in self._streams.items():
                stream._inbox.push(type(error)(error.message, '', request_id))
                stream._changed.notify_all()
            self._changed.notify_all()
        self._transport.close()
        self._bell.close()
        self._ear.close()

    def _turn(self, poller: zmq.Poller) -> bool:
        session, transport = self._session, self._transport
        with self._lock:
            sent = transport.flush(session)
            if self._closing:
                return False
            wait = min(max(0.0, session.wake_at() - time.monotonic()), WAIT_SECONDS_MAX)
        poller.poll(1 + int(1000 * (wait if sent else min(wait, FULL_QUEUE_SECONDS))))
        with self._lock:
            with contextlib.suppress(BlockingIOError):
                self._ear.recv(4096)
            now = time.monotonic()
            for _ in transport.handshakes():
                session.connected(now)
            if transport.refusal:
                session.refused(transport.refusal, now)
            for parts in transport.frames():
                session.receive(parts, now)
            session.tick(now)
            transport.flush(session)
            while session.events:
                request_id, item = session.events.popleft()
                if stream := self._streams.get(request_id):
                    stream._inbox.push(item)
                    stream._changed.notify_all()
                    if isinstance(item, (Done, AlthingError)):
                        del self._streams[request_id]
            self._changed.notify_all()
        return True
