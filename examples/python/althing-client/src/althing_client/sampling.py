"""How tokens are chosen: the one place for members of `sampling`. A new one is a line of this class; both encodings take it from there by its name."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class Sampling:
    """What is None takes the server's default. The server checks ranges and names the field that is wrong (`InvalidArgument`)."""

    temperature: float | None = None  # 0 (greedy) to 2
    top_p: float | None = None  # over 0, up to 1
    min_p: float | None = None  # 0 to 1
    top_k: int | None = None  # 0: all tokens
    seed: int | None = None  # 64 bits without a sign; the server draws one and tells it when there is none
    completion_tokens_max: int | None = None  # of each choice, at least 1
    ignore_stop: bool | None = None  # go on to completion_tokens_max whatever is generated
    n: int | None = None  # so many completions of the same prompt, in one stream
    logprobs: int | None = None  # 0 to 20: how likely each token was, and so many of the most likely ones
    stop: Sequence[str] | None = None  # the answer ends in front of the first of these that comes
    stop_tokens: Sequence[int] | None = None  # the answer ends behind the first of these
    logit_bias: Mapping[int, float] | None = None  # token ids and how much is added to their logits, -100 to 100
    repetition_penalty: float | None = None  # over 0, up to 10; 1: none
    presence_penalty: float | None = None  # -2 to 2
    frequency_penalty: float | None = None  # -2 to 2
    # Members that a server knows and this class does not yet, under their names on the wire.
    more: Mapping[str, Any] = field(default_factory=dict)

    def to_wire(self) -> dict[str, Any]:
        """The members that are set, as they stand in a submit."""
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != 'more'}
        if self.stop is not None:
            own['stop'] = [self.stop] if isinstance(self.stop, str) else list(self.stop)
        if self.stop_tokens is not None:
            own['stop_tokens'] = list(self.stop_tokens)
        if self.logit_bias is not None:
            own['logit_bias'] = {str(token): bias for token, bias in self.logit_bias.items()}
        return {name: value for name, value in {**own, **self.more}.items() if value is not None}
