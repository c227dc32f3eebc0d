"""Bodies of frames, both ways, between bytes and the JSON form of a message (a dict with `type`). JSON always works; Cap'n Proto needs pycapnp.

A codec says what a client says and reads what a server says. `Unreadable` is for bytes that are no message; a message of a kind that is not known comes out
as {'type': ''}.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Protocol

HEADER = b'ALT1'


class Unreadable(ValueError):
    """These bytes are no message."""


class Codec(Protocol):
    letter: bytes

    def encode(self, message: Mapping[str, Any]) -> bytes: ...

    def decode(self, body: bytes) -> dict[str, Any]: ...


class JsonCodec:
    letter = b'j'

    def encode(self, message: Mapping[str, Any]) -> bytes:
        # What is None is absent; surrogates alone, which no UTF-8 can carry, become a question mark.
        present = {name: value for name, value in message.items() if value is not None}
        return json.dumps(present, ensure_ascii=False, separators=(',', ':'), allow_nan=False).encode('utf-8', 'replace')

    def decode(self, body: bytes) -> dict[str, Any]:
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise Unreadable(str(error)) from None
        if not isinstance(message, dict) or not isinstance(message.get('type'), str):
            raise Unreadable('the body is no object with a type')
        return message


def codec_of(encoding: str) -> Codec:
    """'json', or 'capnp' where pycapnp can be imported. Raises ValueError for another name, ImportError with what to install."""
    if encoding == 'json':
        return JsonCodec()
    if encoding == 'capnp':
        from .capnp_codec import CapnpCodec
        return CapnpCodec()
    raise ValueError(f'the encoding is {encoding!r}; it must be "json" or "capnp"')


class Decoders:
    """What comes is decoded by its header: a server answers in the encoding of the last frame it got, errors about the session come in JSON."""

    def __init__(self, own: Codec) -> None:
        self.by_letter: dict[bytes, Codec] = {b'j': JsonCodec(), own.letter: own}

    def decode(self, parts: list[bytes]) -> dict[str, Any]:
        """The message of one ZeroMQ message. A header of another version comes out as {'type': 'version', 'header': …}."""
        if len(parts) == 3 and not parts[0]:
            parts = parts[1:]
        if len(parts) != 2 or len(parts[0]) != 5 or not parts[0].startswith(HEADER[:3]):
            raise Unreadable('no header')
        header, body = parts
        if not header.startswith(HEADER):
            return {'type': 'version', 'header': header.decode('ascii', 'replace')}
        if header[4:] not in self.by_letter:
            raise Unreadable('an encoding that was not asked for')
        return self.by_letter[header[4:]].decode(body)
