#!/usr/bin/env python3
"""Writes docs/protocol-frames.md: every message of the wire as the bytes that go over TCP, in both encodings.

    tools/protocol_frames.py [--check]

The messages are the examples of docs/protocol.md, which a test holds against the code; this adds the parts, the lengths and the dump. --check writes nothing and fails when
the page is not what this would write.
"""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
SOURCE, PAGE = ROOT / 'docs/protocol.md', ROOT / 'docs/protocol-frames.md'
EXAMPLE = re.compile(r'<!-- frame: (client|server) (\w+) -->\n```json\n(.*)\n```\n```text\n([0-9a-f \n]+)\n```')
HEADERS = {'JSON': b'ALT1j', "Cap'n Proto": b'ALT1c'}
MORE, LONG = 1, 2  # flags of a ZMTP frame

INTRODUCTION = """# Every message as bytes

Written by `tools/protocol_frames.py` from the examples of [protocol.md](protocol.md); do not edit it. For whoever writes a client without a Cap'n Proto library, or without ZeroMQ, or looks
at a capture.

Each dump is what one side writes to TCP after ZeroMQ's handshake (ZMTP 3, mechanism NULL): for each part of the message a byte of flags (`01`: another part follows, `02`: the length has
eight bytes instead of one), its length, and the part. The first part is the header, the second the body. In a Cap'n Proto body the first four bytes are the number of segments less one, the
next four the number of 8-byte words of the segment; then comes the segment, which begins with the pointer to the frame: its data words (for a `ServerFrame` the sequence number, and which
member of the union is there), then its pointers. `protocol/wire.capnp` has the order of both.
"""


def examples():
    """[(side, kind, JSON, Cap'n Proto body)]"""
    return [(side, kind, text, bytes.fromhex(dump.replace('\n', ' '))) for side, kind, text, dump in EXAMPLE.findall(SOURCE.read_text(encoding='utf-8'))]


def part(payload, more):
    """One ZMTP frame."""
    flags = (MORE if more else 0) | (LONG if len(payload) > 255 else 0)
    return bytes([flags]) + len(payload).to_bytes(8 if flags & LONG else 1, 'big') + payload


def message(header, body):
    return part(header, True) + part(body, False)


def dump(data):
    """Offset, sixteen bytes, and what of them can be printed."""
    lines = []
    for at in range(0, len(data), 16):
        row = data[at:at + 16]
        printed = ''.join(chr(byte) if 32 <= byte < 127 else '.' for byte in row)
        lines.append(f'{at:04x}  {row.hex(" "):<47}  {printed}')
    return '\n'.join(lines)


def page():
    parts, side_before = [INTRODUCTION], ''
    for side, kind, text, body in examples():
        if side != side_before:
            parts.append(f'## From the {side}\n')
            side_before = side
        parts.append(f'### {kind}\n\n`{text}`\n')
        for encoding, header in HEADERS.items():
            payload = text.encode() if encoding == 'JSON' else body
            parts.append(f'{encoding}, a body of {len(payload)} bytes:\n\n```text\n{dump(message(header, payload))}\n```\n')
    return '\n'.join(parts)


def main():
    parser = argparse.ArgumentParser(description='Write docs/protocol-frames.md: every message of the wire as bytes, in both encodings.')
    parser.add_argument('--check', action='store_true', help='write nothing; fail when the page is not what would be written')
    options = parser.parse_args()
    text = page()
    if options.check:
        if not PAGE.exists() or PAGE.read_text(encoding='utf-8') != text:
            sys.exit('protocol_frames.py: docs/protocol-frames.md is not what this writes; run tools/protocol_frames.py')
        return
    PAGE.write_text(text, encoding='utf-8')


if __name__ == '__main__':
    main()
