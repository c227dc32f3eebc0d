"""The client for asyncio.

    async with AsyncClient('tcp://127.0.0.1:4550') as client:
        async for event in client.stream('12 + 30'):
            …

It belongs to the event loop that it was entered in, whose readers and timers drive it: there is no task and no thread. (The loop must know `add_reader`: on
Windows that is the selector loop.)
"""
from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any, Self

import zmq

from .client import ENDPOINT, FULL_QUEUE_SECONDS, SILENCE_SECONDS, WAIT_SECONDS_MAX
from .codec import codec_of
from .errors import AlthingError, Unavailable
from .messages import Accepted, Done, Event, Welcome
from .reply import Reply
from .session import Session
from .stream import Inbox, Prompt, submit_members
from .transport import CurveKeys, Transport, readable


class AsyncStream:
    """As `Stream`. Cancelling the task that iterates cancels the request; so does leaving the loop, at once under `async with`, else when the loop's iterator is
    collected."""

    def __init__(self, client: AsyncClient, request_id: str) -> None:
        self.request_id = request_id
        self._client, self._inbox, self._changed = client, Inbox(), asyncio.Event()

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

    async def __aiter__(self) -> AsyncIterator[Event]:
        try:
            while (event := await self._next()) is not None:
                yield event
        finally:
            self.close()

    async def read(self) -> Reply:
        """Everything up to the end."""
        try:
            while await self._next() is not None:
                pass
        finally:
            self.close()
        return self.reply

    def cancel(self) -> None:
        """Asks the server to end it. Go on reading: it ends with `Cancelled`, or with what was faster."""
        self._client._cancel(self, abandon=False)

    def close(self) -> None:
        """Cancels it if it is not over, and hears no more of it."""
        if not self._inbox.over:
            self._client._cancel(self, abandon=True)

    async def _next(self) -> Event | None:
        while True:
            self._changed.clear()  # before anything is looked at: _consume takes in what has come
            event, consumed = self._inbox.take()
            self._client._consume(self.request_id, consumed)
            if event is not None:
                return event
            if self._inbox.over:
                if self._inbox.error:
                    raise self._inbox.error
                return None
            await self._changed.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class AsyncClient:
    """As `Client`; connects with `async with`, or `await client.connect()`."""

    def __init__(self, endpoint: str = ENDPOINT, *, encoding: str = 'json', name: str = 'althing-client.py/0.1', silence_s: float = SILENCE_SECONDS,
                 curve: CurveKeys | None = None) -> None:
        self.endpoint = endpoint
        self._codec, self._name, self._silence_s, self._curve = codec_of(encoding), name, silence_s, curve
        self._streams: dict[str, AsyncStream] = {}
        self._session: Session | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def connect(self) -> Self:
        """Raises Unavailable when nobody answers within silence_s seconds, VersionMismatch and what else the server has against us."""
        if self._session:
            raise RuntimeError('this client has been connected before; make another one')
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()
        self._transport = Transport(self.endpoint, self._curve)
        self._session = session = Session(self._codec, self._loop.time(), name=self._name, endpoint=self.endpoint, silence_s=self._silence_s)
        self._closed = False
        self._fds = [int(source.getsockopt(zmq.FD)) for source in (self._transport.socket, self._transport.monitor)]
        for fd in self._fds:
            self._loop.add_reader(fd, self._turn)
        self._turn()
        try:
            while not (session.welcome or session.failure):
                self._changed.clear()
                await self._changed.wait()
        except asyncio.CancelledError:
            self.close()
            raise
        if session.failure:
            self.close()
            raise session.failure
        return self

    @property
    def server(self) -> Welcome:
        """What the server said of itself, last."""
        assert self._session is not None and self._session.welcome is not None, 'connect first'
        return self._session.welcome

    def stream(self, prompt: Prompt, *, request_id: str = '', **options: Any) -> AsyncStream:
        """Starts a request; `submit_members` has the options. An id that is given and was used before by this client attaches to that request.

        Raises InvalidArgument, TooLarge, or why there is no session; whatever the server finds wrong is raised by iterating.
        """
        if self._session is None or self._closed:
            raise Unavailable('this client is not connected')
        request_id = self._session.submit(submit_members(prompt, **options), self._loop.time(), request_id)
        stream = self._streams[request_id] = AsyncStream(self, request_id)
        self._loop.call_soon(self._turn)
        return stream

    async def ask(self, prompt: Prompt, **options: Any) -> Reply:
        """Starts a request and waits for all of the answer. Options as for `stream`."""
        return await self.stream(prompt, **options).read()

    def close(self) -> None:
        """Cancels what is open and ends the connection (it may take LINGER_MS). Streams that others still read end with Unavailable."""
        if self._session is None or self._closed:
            return
        self._closed = True
        self._session.close()
        self._transport.flush(self._session)
        for fd in self._fds:
            self._loop.remove_reader(fd)
        if self._timer:
            self._timer.cancel()
        for request_id, stream in self._streams.items():
            stream._inbox.push(Unavailable('this client was closed', '', request_id))
            stream._changed.set()
        self._transport.close()

    async def __aenter__(self) -> Self:
        return await self.connect()

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- called by streams

    def _cancel(self, stream: AsyncStream, abandon: bool) -> None:
        assert self._session is not None
        self._session.cancel(stream.request_id, abandon)
        if abandon:
            stream._inbox.over = True
            self._streams.pop(stream.request_id, None)
            stream._changed.set()
        if not self._closed:
            self._turn()

    def _consume(self, request_id: str, deltas: int) -> None:
        if deltas and self._session and not self._closed:
            self._session.consume(request_id, deltas)
            if self._session.outgoing:
                self._turn()

    # --- called by the loop

    def _turn(self) -> None:
        """Everything that can be done now. ZeroMQ's descriptor tells edges, so whoever sends or receives must look whether more has come."""
        session, transport = self._session, self._transport
        if session is None or self._closed:
            return
        now = self._loop.time()
        for _ in transport.handshakes():
            session.connected(now)
        if transport.refusal:
            session.refused(transport.refusal, now)
        for parts in transport.frames():
            session.receive(parts, now)
        session.tick(now)
        sent = transport.flush(session)
        while session.events:
            request_id, item = session.events.popleft()
            if stream := self._streams.get(request_id):
                stream._inbox.push(item)
                stream._changed.set()
                if isinstance(item, (Done, AlthingError)):
                    del self._streams[request_id]
        self._changed.set()
        if self._timer:
            self._timer.cancel()
        wait = 0.0 if readable(transport.socket) or readable(transport.monitor) else min(max(0.0, session.wake_at() - now), WAIT_SECONDS_MAX)
        self._timer = self._loop.call_later(wait if sent else min(wait, FULL_QUEUE_SECONDS), self._turn)
