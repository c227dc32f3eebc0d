"""What can go wrong, as exceptions: one class for each error code of the wire, all of them `AlthingError`.

`except Busy` catches one kind; `except AlthingError as error` all of them, with `error.code`, `error.field` and `error.hint`.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from .reply import Reply


class AlthingError(Exception):
    """An error that the server told, or that this package found about the server. `code` is one of those that docs/protocol.md lists."""

    code: ClassVar[str] = 'internal'
    hint: ClassVar[str] = 'report it to whoever runs the server'

    def __init__(self, message: str, field: str = '', request_id: str = '', retry_after_s: float = 0) -> None:
        super().__init__(f'{self.code}: {message}')
        self.message = message
        self.field = field  # what it is about, for example "sampling.top_p"; "" when nothing in particular
        self.retry_after_s = retry_after_s  # of `Busy`: when there may be room; 0: not known
        self.request_id = request_id  # "" when it is about the whole session
        self.reply: Reply | None = None  # what had come of the answer before


class InvalidArgument(AlthingError):
    code, hint = 'invalid_argument', 'correct the field'


class NotFound(AlthingError):
    code, hint = 'not_found', 'submit the request again'


class Corrupt(AlthingError):
    code, hint = 'corrupt', 'one side sends bytes that contradict themselves: compare both versions'


class Unsupported(AlthingError):
    code, hint = 'unsupported', 'do without it, or update the server'


class TooLarge(AlthingError):
    code, hint = 'too_large', 'send less; the message has the limit'


class Busy(AlthingError):
    code, hint = 'busy', 'wait, and try again'


class Draining(AlthingError):
    code, hint = 'draining', 'the server is stopping: go to another one'


class Cancelled(AlthingError):
    code, hint = 'cancelled', 'the request was cancelled'


class DeadlinePassed(AlthingError):
    code, hint = 'deadline', 'give the request more time, or ask for fewer tokens'


class SlowReader(AlthingError):
    code, hint = 'slow_reader', 'read the stream faster, or ask for it when it can be read'


class RankLost(AlthingError):
    code, hint = 'rank_lost', 'submit the request again'


class CoreLost(AlthingError):
    code, hint = 'core_lost', 'submit the request again'


class Unavailable(AlthingError):
    code, hint = 'unavailable', 'see whether `althing serve` runs at this endpoint, and wait until it is ready'


class VersionMismatch(AlthingError):
    code, hint = 'version', 'update the client or the server'


class Nonfinite(AlthingError):
    code, hint = 'nonfinite', 'the model computed NaN or infinity: verify its checkpoint'


class Denied(AlthingError):
    code, hint = 'denied', "have the server's operator allow this key (`althing keys allow`)"


class ServerIo(AlthingError):
    code = 'io'


class Internal(AlthingError):
    code = 'internal'


CLASSES: dict[str, type[AlthingError]] = {
    kind.code: kind
    for kind in (InvalidArgument, NotFound, Corrupt, Unsupported, TooLarge, Busy, Draining, Cancelled, DeadlinePassed, SlowReader, RankLost,
                 CoreLost, Unavailable, VersionMismatch, Nonfinite, Denied, ServerIo, Internal)
}


def error_of(code: str, message: str, field: str = '', request_id: str = '', retry_after_s: float = 0) -> AlthingError:
    """The exception for a code of the wire. A code of a later version counts as `internal`."""
    return CLASSES.get(code, Internal)(message, field, request_id, retry_after_s)
