"""Sequence numbers of one stream: what comes out is exactly 1, 2, 3 … whatever comes in. Pure: the time is an argument."""
from __future__ import annotations

from enum import Enum

ATTEMPTS_MAX = 10
RETRY_SECONDS = 1.0  # after a resume that brought nothing
TOGETHER_SECONDS = 0.1  # what is missing within so short a time is asked for at once


class Verdict(Enum):
    DELIVER = 'it is the next one'
    IGNORE = 'it was here before, or is under way from before the resume'
    RESUME = 'something is missing: ask for what follows `last`'
    BROKEN = 'asking has not helped'


class StreamOrder:
    def __init__(self) -> None:
        self.last = 0  # the last number that was delivered
        self.highest = 0  # that was seen
        self.attempts = 0  # resumes since the last one that was delivered
        self.retry_at: float | None = None  # when to ask again if nothing comes

    def on(self, sequence: int, now: float) -> Verdict:
        if sequence <= self.last:
            return Verdict.IGNORE
        if sequence == self.last + 1:
            self.last, self.highest, self.attempts, self.retry_at = sequence, max(self.highest, sequence), 0, None
            return Verdict.DELIVER
        # Numbers rise until the server hears the resume; one that does not shows that it sends again, with the gap still there.
        under_way = self.retry_at is not None and sequence > self.highest
        self.highest = max(self.highest, sequence)
        return Verdict.IGNORE if under_way else self.ask(now)

    def ask(self, now: float) -> Verdict:
        """A resume is due, because of a gap or because what came could not be read."""
        if self.retry_at is None or now >= self.retry_at - RETRY_SECONDS + TOGETHER_SECONDS:
            self.attempts += 1
            self.retry_at = now + RETRY_SECONDS
        return Verdict.BROKEN if self.attempts > ATTEMPTS_MAX else Verdict.RESUME
