"""A client for Althing servers: typed streams over ZeroMQ. `Client` is for threads, `AsyncClient` for asyncio; README.md shows both."""
from .aio import AsyncClient, AsyncStream
from .client import Client, Stream
from .errors import (AlthingError, Busy, Cancelled, CoreLost, Corrupt, DeadlinePassed, Denied, Draining, Internal, InvalidArgument, Nonfinite, NotFound,
                     RankLost, ServerIo, SlowReader, TooLarge, Unavailable, Unsupported, VersionMismatch)
from .messages import (Accepted, ChoiceEnd, Done, Event, Extra, LikelyToken, Logprobs, MessageEnded, MessageStarted, Routing, Text, TokenLogprob, Tokens,
                       Usage, Welcome)
from .reply import Answer, Message, Reply, Tool, ToolCall
from .sampling import Sampling
from .session import Session
from .transport import CurveKeys

__version__ = '0.1.0'

__all__ = [
    'Accepted', 'AlthingError', 'Answer', 'AsyncClient', 'AsyncStream', 'Busy', 'Cancelled', 'ChoiceEnd', 'Client', 'CoreLost', 'Corrupt', 'CurveKeys', 'Denied',
    'DeadlinePassed', 'Done', 'Draining', 'Event', 'Extra', 'Internal', 'InvalidArgument', 'LikelyToken', 'Logprobs', 'Message', 'MessageEnded', 'MessageStarted', 'Nonfinite', 'NotFound',
    'RankLost', 'Reply', 'Routing', 'Sampling', 'ServerIo', 'Session', 'SlowReader', 'Stream', 'Text', 'TokenLogprob', 'Tokens', 'TooLarge', 'Tool', 'ToolCall', 'Unavailable',
    'Unsupported', 'Usage', 'VersionMismatch', 'Welcome',
]
