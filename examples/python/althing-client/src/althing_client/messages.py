"""What a server says, as values, read from the JSON form of the wire. Members and events that this version does not know are harmless: they are kept
where a reader may look for them (`Extra`, `members`) and change nothing else."""
from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import AlthingError, error_of


@dataclass(frozen=True, slots=True)
class Welcome:
    """The server and its limits. `server_instance` names the serving process, or the one whose requests it took over."""

    version: int
    server_instance: str
    model: str
    context_tokens_max: int  # prompt and completion of one request
    frame_bytes_max: int  # of what a client sends; 0: not told
    session_silence_ms_max: int  # the session ends when the client says nothing for so long


@dataclass(frozen=True, slots=True)
class Accepted:
    """The request is in the queue."""

    prompt_tokens: int
    seed: int  # the request's own, or the one that the server drew


@dataclass(frozen=True, slots=True)
class MessageStarted:
    """A message of the answer begins: number `index` of choice `choice`. Absent words are ""."""

    choice: int
    index: int
    role: str
    channel: str  # "analysis" is reasoning, "final" the answer
    recipient: str  # of a call, for example "functions.get_weather"
    content_type: str


@dataclass(frozen=True, slots=True)
class Text:
    """More of the content of message `index`."""

    choice: int
    index: int
    text: str


@dataclass(frozen=True, slots=True)
class MessageEnded:
    choice: int
    index: int


@dataclass(frozen=True, slots=True)
class Tokens:
    """Generated token ids; only with `return_tokens`, and for prompts of token ids."""

    choice: int
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Routing:
    """Where tokens were computed; only with `trace_top_m`. `parts` are as docs/routing-trace.md describes them."""

    choice: int
    parts: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class LikelyToken:
    """One of the most likely tokens at a place."""

    token: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a generated token was, of what its logits had become by penalties and biases; `top` has the most likely ones, best first, as many as were asked for."""

    token: int
    logprob: float
    top: tuple[LikelyToken, ...] = ()


@dataclass(frozen=True, slots=True)
class Logprobs:
    """One for each generated token that this event's delta is made of; only with `Sampling(logprobs=…)`."""

    choice: int
    tokens: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Extra:
    """Members of a delta that this package does not know, as they came."""

    choice: int
    members: Mapping[str, Any]


Event = MessageStarted | Text | MessageEnded | Tokens | Routing | Logprobs | Extra


@dataclass(frozen=True, slots=True)
class Delta:
    """One message of a stream: as many events as the server had together."""

    sequence: int
    choice: int
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int = 0  # of the prompt, once
    completion_tokens: int = 0  # of all choices
    preemptions: int = 0  # how often the request gave its memory to others on the way
    reasoning_tokens: int = 0  # of the completion's, those that the user does not see: reasoning and calls; 0 for prompts of token ids
    cached_tokens: int = 0  # of the prompt, that earlier requests had left computed
    miss: str = 'none'  # why there were no more: cold, evicted, boundary, short, traced, disabled


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """How one of several choices ended."""

    reason: str
    completion_tokens: int
    preemptions: int
    error: AlthingError | None = None
    stop_string: int | None = None  # which of `Sampling(stop=…)` ended it, counted from 0


@dataclass(frozen=True, slots=True)
class Done:
    """The end of a stream that went well."""

    sequence: int
    reason: str  # "stop" or "length"; with several choices the gravest of theirs
    usage: Usage
    choices: tuple[ChoiceEnd, ...] = ()  # empty for a request of one choice
    layout_changed: bool = False  # ranks were lost or came back on the way; the same seed may give other tokens another time
    members: Mapping[str, Any] = field(default_factory=dict)  # all of it, as it came
    stop_string: int | None = None  # which of `Sampling(stop=…)` ended it, counted from 0; with several choices theirs say it


DELTA_MEMBERS = {'type', 'request_id', 'sequence', 'choice', 'events', 'tokens', 'routing', 'logprobs'}


def welcome_of(message: Mapping[str, Any]) -> Welcome:
    return Welcome(int(message.get('version') or 0), message.get('server_instance') or '', message.get('model') or '',
                   int(message.get('context_tokens_max') or 0), int(message.get('frame_bytes_max') or 0), int(message.get('session_silence_ms_max') or 0))


def accepted_of(message: Mapping[str, Any]) -> Accepted:
    return Accepted(int(message.get('prompt_tokens') or 0), int(message.get('seed') or 0))


def delta_of(message: Mapping[str, Any]) -> Delta:
    choice = int(message.get('choice') or 0)
    events: list[Event] = []
    for event in message.get('events') or ():
        index = int(event.get('index') or 0)
        if event['type'] == 'message_started':
            events.append(MessageStarted(choice, index, event.get('role') or 'assistant', event.get('channel') or '', event.get('recipient') or '',
                                         event.get('content_type') or ''))
        elif event['type'] == 'text':
            events.append(Text(choice, index, event.get('text') or ''))
        elif event['type'] == 'message_ended':
            events.append(MessageEnded(choice, index))
    if message.get('tokens'):
        events.append(Tokens(choice, tuple(message['tokens'])))
    if message.get('routing'):
        events.append(Routing(choice, tuple(message['routing'])))
    if message.get('logprobs'):
        events.append(Logprobs(choice, tuple(logprob_of(told) for told in message['logprobs'])))
    if more := {name: value for name, value in message.items() if name not in DELTA_MEMBERS and value not in (None, [], '')}:
        events.append(Extra(choice, more))
    return Delta(int(message['sequence']), choice, tuple(events))


def single(number: float) -> float:
    """The server's numbers have 32 bits; JSON's decimals stand for the same ones, so both encodings give equal values."""
    return float(struct.unpack('f', struct.pack('f', number))[0])


def logprob_of(told: Mapping[str, Any]) -> TokenLogprob:
    top = tuple(LikelyToken(int(token), single(logprob)) for token, logprob in told.get('top') or ())
    return TokenLogprob(int(told['token']), single(told['logprob']), top)


def stop_string_of(end: Mapping[str, Any]) -> int | None:
    return None if end.get('stop_string') is None else int(end['stop_string'])


def usage_of(message: Mapping[str, Any]) -> Usage:
    return Usage(*(int(message.get(name) or 0) for name in ('prompt_tokens', 'completion_tokens', 'preemptions', 'reasoning_tokens', 'cached_tokens')),
                 message.get('miss') or 'none')


def failure_of(message: Mapping[str, Any] | None, request_id: str) -> AlthingError:
    told = message or {}
    return error_of(str(told.get('code')), told.get('message') or 'the server gave no reason', told.get('field') or '', request_id,
                    int(told.get('retry_after_ms') or 0) / 1000)


def done_of(message: Mapping[str, Any]) -> Done:
    ends = tuple(ChoiceEnd(end.get('reason') or 'stop', int(end.get('completion_tokens') or 0), int(end.get('preemptions') or 0),
                           failure_of(end['error'], message.get('request_id') or '') if end.get('error') else None, stop_string_of(end))
                 for end in message.get('choices') or ())
    return Done(int(message['sequence']), message.get('reason') or 'stop', usage_of(message.get('usage') or {}), ends, bool(message.get('layout_changed')),
                dict(message), stop_string_of(message))
