"""An answer put together: what the events of a stream add up to, by choice."""
from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .messages import Accepted, Done, Event, Extra, Logprobs, MessageEnded, MessageStarted, Routing, Text, TokenLogprob, Tokens


@dataclass(slots=True)
class Message:
    """One Harmony message: of a conversation that is sent, or of an answer. None is absent."""

    role: str
    content: str
    name: str | None = None
    channel: str | None = None
    recipient: str | None = None
    content_type: str | None = None
    tokens: Sequence[int] | None = None  # of a message that the server's model generated: its ids, which the next prompt repeats as they are (Answer.replayed)

    def to_wire(self) -> dict[str, Any]:
        words = {'name': self.name, 'recipient': self.recipient, 'channel': self.channel, 'content_type': self.content_type}
        ids = {'tokens': list(self.tokens)} if self.tokens else {}
        return {'role': self.role, **{name: word for name, word in words.items() if word}, 'content': self.content, **ids}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `parameters` is a JSON schema, whose order of keys the model sees; None: it takes nothing."""

    name: str
    description: str = ''
    parameters: dict[str, Any] | None = None

    def to_wire(self) -> dict[str, Any]:
        schema = {} if self.parameters is None else {'parameters': self.parameters}
        return {'name': self.name, 'description': self.description, **schema}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model wants `name` called. `arguments` is text that should be JSON; models make mistakes."""

    recipient: str
    arguments: str

    @property
    def name(self) -> str:
        return self.recipient.removeprefix('functions.')

    def parse(self) -> Any:
        """The arguments as a value. Raises ValueError when they are no JSON: tell the model, it often does better next time."""
        return json.loads(self.arguments)

    def answer(self, content: str) -> Message:
        """The message that gives the call's result back."""
        return Message('tool', content, name=self.recipient, recipient='assistant', channel='commentary')


@dataclass(slots=True)
class Answer:
    """One choice."""

    messages: list[Message] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    rest: str = ''  # of a prompt of token ids that a stop string ended: text behind the last token and in front of that string
    routing: list[Any] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of each token, when they were asked for
    extra: list[Any] = field(default_factory=list)  # members that this package does not know, a mapping for each delta that had some

    def _channel(self, channel: str) -> str:
        return ''.join(message.content for message in self.messages if message.channel == channel and not message.recipient)

    @property
    def text(self) -> str:
        """What the model says to the user. Messages without a channel count: fine-tuned models make them."""
        return ''.join(message.content for message in self.messages if message.channel in ('final', None, '') and not message.recipient)

    @property
    def reasoning(self) -> str:
        return self._channel('analysis')

    @property
    def commentary(self) -> str:
        return self._channel('commentary')

    @property
    def tool_calls(self) -> list[ToolCall]:
        addressed = ((message.recipient or '', message.content) for message in self.messages)
        return [ToolCall(recipient, content) for recipient, content in addressed if recipient.startswith('functions.')]

    def replayed(self, stops: Collection[int]) -> list[Message]:
        """The messages with their tokens, for a next turn whose prompt repeats them as they were generated. `stops`: the ids that end a message (gpt-oss: 200002, 200007
        and 200012). Without tokens where there are none (ask with return_tokens), or not a piece up to a stop for each message: the output was malformed or cut."""
        pieces: list[list[int]] = [[]]
        for token in self.tokens:
            pieces[-1].append(token)
            if token in stops:
                pieces.append([])
        whole = not pieces.pop() and len(pieces) == len(self.messages)
        return [replace(message, tokens=piece) for message, piece in zip(self.messages, pieces)] if whole else list(self.messages)

    def hear(self, event: Event) -> None:
        if isinstance(event, MessageStarted):
            while len(self.messages) <= event.index:
                self.messages.append(Message('assistant', ''))
            self.messages[event.index] = Message(event.role, '', None, event.channel or None, event.recipient or None, event.content_type or None)
        elif isinstance(event, Text):
            if self.messages:
                self.messages[event.index].content += event.text
            else:
                self.rest += event.text
        elif isinstance(event, Tokens):
            self.tokens += event.ids
        elif isinstance(event, Routing):
            self.routing += event.parts
        elif isinstance(event, Logprobs):
            self.logprobs += event.tokens
        elif isinstance(event, Extra):
            self.extra.append(event.members)
        else:
            assert isinstance(event, MessageEnded)


@dataclass(slots=True)
class Reply:
    """A request's whole answer. `text`, `reasoning`, `commentary`, `tool_calls`, `messages`, `tokens` and `logprobs` are choice 0's; `choices` has all."""

    accepted: Accepted | None = None
    done: Done | None = None  # None: it is not over, or ended with an error
    answers: dict[int, Answer] = field(default_factory=dict)

    def hear(self, event: Event) -> None:
        self.answers.setdefault(event.choice, Answer()).hear(event)

    @property
    def choices(self) -> Sequence[Answer]:
        count = max([1, *(choice + 1 for choice in self.answers), len(self.done.choices) if self.done else 0])
        return [self.answers.get(choice, Answer()) for choice in range(count)]

    @property
    def messages(self) -> list[Message]:
        """The messages of choice 0: append them to the conversation to go on with it."""
        return self.choices[0].messages

    text = property(lambda self: self.choices[0].text)
    reasoning = property(lambda self: self.choices[0].reasoning)
    commentary = property(lambda self: self.choices[0].commentary)
    tool_calls = property(lambda self: self.choices[0].tool_calls)
    tokens = property(lambda self: self.choices[0].tokens)
    logprobs = property(lambda self: self.choices[0].logprobs)

    def stop_string(self, choice: int = 0) -> int | None:
        """Which of `Sampling(stop=…)` ended this choice, counted from 0; None: another end, or none yet."""
        if self.done is None:
            return None
        return self.done.choices[choice].stop_string if choice < len(self.done.choices) else self.done.stop_string if choice == 0 else None

    @property
    def reasoning_tokens(self) -> int:
        """Of the completion's tokens, those that the user does not see. 0 before the end."""
        return self.done.usage.reasoning_tokens if self.done else 0
