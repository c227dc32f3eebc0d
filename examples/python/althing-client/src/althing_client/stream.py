"""What both clients make of a request: the members of its submit from Python values, and its stream without waiting."""
from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .errors import AlthingError, InvalidArgument
from .messages import Accepted, Delta, Done, Event
from .reply import Message, Reply, Tool
from .sampling import Sampling
from .session import Item

CREDIT = 64  # deltas that may lie here unread, of one stream

Prompt = str | Sequence[Message | Mapping[str, Any]] | Sequence[int]


def submit_members(prompt: Prompt, *, tools: Iterable[Tool | Mapping[str, Any]] = (), sampling: Sampling | Mapping[str, Any] | None = None,
                   effort: str | None = None, timeout_s: float = 0, credit: int = CREDIT, return_tokens: bool = False, trace_top_m: int = 0,
                   grammar: Mapping[str, Any] | None = None, tenant: str = '', priority: int = 0,
                   more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """A submit without its id.

    prompt: what the user says; or a conversation (`Message`, or dicts as docs/protocol.md has them); or token ids.
    effort: "low", "medium" or "high", for conversations without a system message. timeout_s: the server ends the request after so many seconds (0: never).
    grammar: what the answer is held to: {"json_schema": {...}}, {"json_object": True} or {"regex": "..."}.
    priority: -4 to 4, among the requests of the tenant; the higher goes first. credit: how many deltas may wait here unread before the server holds text back (0: any number). more: members that this package does not know.
    """
    members: dict[str, Any] = {}
    if isinstance(prompt, str):
        members['messages'] = [{'role': 'user', 'content': prompt}]
    elif prompt and all(isinstance(each, int) for each in prompt):
        members['prompt_tokens'] = list(prompt)
    else:
        members['messages'] = [each.to_wire() if isinstance(each, Message) else dict(each) for each in prompt if not isinstance(each, int)]
        if len(members['messages']) < len(prompt):
            raise InvalidArgument('a prompt is text, messages, or token ids; this one mixes them', 'messages')
    if declared := [tool.to_wire() if isinstance(tool, Tool) else dict(tool) for tool in tools]:
        members['tools'] = declared
    if effort:
        members['reasoning_effort'] = effort
    chosen = sampling.to_wire() if isinstance(sampling, Sampling) else {name: value for name, value in (sampling or {}).items() if value is not None}
    members.update(sampling=chosen, timeout_ms=round(timeout_s * 1000), credit=credit, return_tokens=return_tokens)
    if trace_top_m:
        members['trace_top_m'] = trace_top_m
    if grammar:
        members['grammar'] = dict(grammar)
    if tenant:
        members['tenant'] = tenant
    if priority:
        members['priority'] = priority
    return {**members, **(more or {})}


class Inbox:
    """A stream's items on their way from the session to the user. `take` counts a delta as consumed when the user asks for what is behind it."""

    def __init__(self) -> None:
        self.reply = Reply()
        self.over = False
        self.error: AlthingError | None = None
        self._items: deque[Item] = deque()
        self._events: deque[Event] = deque()
        self._in_delta = False

    def push(self, item: Item) -> None:
        if isinstance(item, Accepted):
            self.reply.accepted = item
        else:
            self._items.append(item)

    def take(self) -> tuple[Event | None, int]:
        """The next event, or None when there is none yet or `over`; and how many deltas the user is done with."""
        consumed = 0
        while True:
            if self._events:
                event = self._events.popleft()
                self.reply.hear(event)
                return event, consumed
            if self._in_delta:
                self._in_delta = False
                consumed += 1
            if self.over or not self._items:
                return None, consumed
            item = self._items.popleft()
            if isinstance(item, Delta):
                self._events.extend(item.events)
                self._in_delta = True
            else:
                self.over = True
                if isinstance(item, Done):
                    self.reply.done = item
                elif isinstance(item, AlthingError):
                    self.error, item.reply = item, self.reply
