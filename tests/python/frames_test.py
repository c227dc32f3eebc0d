#!/usr/bin/env python3
"""docs/protocol-frames.md against three independent readers: the schema itself (pycapnp), both codecs of the Python package, and libzmq, which writes the same bytes to TCP.
(The C++ code is held against the same examples by WireDocs of protocol_tests.)"""
import json
import pathlib
import re
import socket
import struct
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / folder) for folder in ('examples/python', 'tests/end_to_end', 'tests/conformance', 'tools')]
import protocol_frames  # noqa: E402
import zmq  # noqa: E402
from althing_client.codec import codec_of  # noqa: E402
from harness import main  # noqa: E402
from wire import capnp, decode, schemas  # noqa: E402

PAGE = (ROOT / 'docs/protocol-frames.md').read_text(encoding='utf-8')
SECTION = re.compile(r"### (\w+)\n\n`([^\n]*)`\n\nJSON, a body of (\d+) bytes:\n\n```text\n(.*?)\n```\n\nCap'n Proto, a body of (\d+) bytes:\n\n```text\n(.*?)\n```", re.S)


def bytes_of(dump):
    return b''.join(bytes.fromhex(line[6:53]) for line in dump.splitlines())


def parts_of(data):
    """ZMTP frames, read by the rules that the page states."""
    parts, more = [], True
    while more:
        flags, data = data[0], data[1:]
        size = 8 if flags & 2 else 1
        length, data = int.from_bytes(data[:size], 'big'), data[size:]
        parts.append(data[:length])
        data, more = data[length:], bool(flags & 1)
    assert not data, 'bytes behind the last part'
    return parts


def printed():
    """[(side, kind, message, parts of the JSON form, parts of the Cap'n Proto form)]"""
    client, server = PAGE.split('## From the server')
    found = [(side, kind, json.loads(text), parts_of(bytes_of(first)), parts_of(bytes_of(second)), (int(size), int(other)))
             for side, half in (('client', client), ('server', server)) for kind, text, size, first, other, second in SECTION.findall(half)]
    assert all((len(first[1]), len(second[1])) == sizes for *_, first, second, sizes in found)
    return [entry[:5] for entry in found]


def the_page_is_what_the_script_writes():
    run = subprocess.run([sys.executable, ROOT / 'tools/protocol_frames.py', '--check'], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


def every_member_of_both_unions_is_shown():
    schema = (ROOT / 'protocol/wire.capnp').read_text()
    for side, name in (('client', 'ClientFrame'), ('server', 'ServerFrame')):
        union = schema[schema.index('union {', schema.index(f'struct {name} {{')):]
        members = re.findall(r'^\s+(\w+) @\d+', union[:union.index('\n  }')], re.M)
        assert {kind for at, kind, *_ in printed() if at == side} == set(members), (name, members)


def the_json_form_is_the_message():
    for side, kind, message, parts, _ in printed():
        assert parts[0] == b'ALT1j' and json.loads(parts[1]) == message and message['type'] == kind


def without_defaults(value):
    """What both forms say: in Cap'n Proto a member that is absent reads as its default."""
    if isinstance(value, dict):
        return {key: kept for key, inner in value.items() if (kept := without_defaults(inner)) not in ('', None, [], {}, False, 0)}
    return [without_defaults(inner) for inner in value] if isinstance(value, list) else value


def the_capnp_form_says_the_same_of_servers():
    codec = codec_of('capnp')
    for side, kind, message, _, parts in printed():
        if side == 'server':
            if 'seed' in message:
                message['seed'] = int(message['seed'])
            assert parts[0] == b'ALT1c'
            assert without_defaults(codec.decode(parts[1])) == without_defaults(message), kind


def the_capnp_form_says_the_same_of_clients():
    """The package encodes the JSON form, and the schema reads the same out of it as out of the page's bytes; a submit's layout may differ, the others are equal bytes."""
    codec = codec_of('capnp')
    for side, kind, message, _, parts in printed():
        if side != 'client':
            continue
        encoded = codec.encode(message)
        with schemas().now.ClientFrame.from_bytes(parts[1]) as page, schemas().now.ClientFrame.from_bytes(encoded) as ours:
            assert without_defaults(page.to_dict()) == without_defaults(ours.to_dict()), kind
        assert kind == 'submit' or encoded == parts[1], kind
        assert decode(parts)[0]['type'] == kind


def take(connection, count):
    data = b''
    while len(data) < count:
        data += connection.recv(count - len(data)) or b'\0' * count
    return data


def serve_raw(listener, lengths, heard):
    """Half of a ZMTP handshake by hand, then whatever comes."""
    connection, _ = listener.accept()
    with connection:
        connection.sendall(b'\xff' + 8 * b'\0' + b'\x7f' + b'\3\0' + b'NULL'.ljust(20, b'\0') + 32 * b'\0')
        take(connection, 64)
        kind = b'\x0bSocket-Type' + struct.pack('>I', 6) + b'ROUTER'
        connection.sendall(b'\x04' + bytes([6 + len(kind)]) + b'\x05READY' + kind)
        flags, length = take(connection, 2)
        assert flags == 4 and take(connection, length).startswith(b'\x05READY')
        heard += [take(connection, length) for length in lengths]


def libzmq_writes_these_bytes():
    frames = [protocol_frames.message(*parts) for *_, first, second in printed() for parts in (first, second)]
    heard, context = [], zmq.Context()
    with socket.create_server(('127.0.0.1', 0)) as listener:
        thread = threading.Thread(target=serve_raw, args=(listener, [len(frame) for frame in frames], heard), daemon=True)
        thread.start()
        dealer = context.socket(zmq.DEALER)
        dealer.connect(f'tcp://127.0.0.1:{listener.getsockname()[1]}')
        for *_, first, second in printed():
            dealer.send_multipart(first)
            dealer.send_multipart(second)
        thread.join(10)
        context.destroy(linger=0)
    assert heard == frames, f'{sum(a == b for a, b in zip(heard, frames))} of {len(frames)} are as printed'


if __name__ == '__main__':
    cases = [the_page_is_what_the_script_writes, every_member_of_both_unions_is_shown, the_json_form_is_the_message, libzmq_writes_these_bytes]
    with_schema = [the_capnp_form_says_the_same_of_servers, the_capnp_form_says_the_same_of_clients]
    if capnp is None:
        print('the Cap\'n Proto bodies are not read: pycapnp is not installed (tools/test installs it)')
    main(*cases, *(with_schema if capnp else []), server=False)
