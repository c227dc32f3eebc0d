"""The wire as the conformance kit writes and reads it: its own code for both encodings, so that a client is not measured with itself.

Messages are dicts in the JSON form of docs/protocol.md. `later=True` writes as a server of a later version would: with members that today's protocol does not
have, in every object; in Cap'n Proto by a schema that is made here from the real one.
"""
import json
import pathlib
import re
import tempfile
import threading

try:
    import capnp
except ImportError:
    capnp = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCHEMA = ROOT / 'protocol/wire.capnp'
HEADERS = {'json': b'ALT1j', 'capnp': b'ALT1c'}
# Structs of which a later server knows more, and those whose unions get a new member.
GROWN = ('ServerFrame', 'Welcome', 'Accepted', 'Delta', 'DeltaEvent', 'MessageHeader', 'Done', 'Failure', 'Pong')
UNIONS = ('ServerFrame', 'DeltaEvent')


class NotAFrame(Exception):
    """What a client sent is no frame of the protocol."""


def block_end(text, at):
    """Where the block ends whose opening brace is at `at`."""
    depth = 0
    for place in range(at, len(text)):
        depth += {'{': 1, '}': -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError('a brace is missing in the schema')


def later_schema(text):
    """The schema of a later version: one text and one number more in every struct of GROWN, one member more in the unions of UNIONS."""
    text = re.sub(r'#[^\n]*', '', text).replace('@0xdb76a21634f543b3;', '@0xdb76a21634f543b4;', 1)
    for name in GROWN:
        opening = re.search(rf'\bstruct {name} {{', text).end() - 1
        end = block_end(text, opening)
        block = text[opening:end]
        number = 1 + max(int(ordinal) for ordinal in re.findall(r'@(\d+)', block))
        if name in UNIONS:
            block, count = re.subn(r'\bunion {', f'union {{\n    later @{number} :Text;', block, count=1)
            assert count == 1, f'{name} has no union'
            number += 1
        text = text[:opening] + block + f'  laterText @{number} :Text;\n  laterNumber @{number + 1} :UInt64;\n' + text[end:]
    assert '0xdb76a21634f543b4' in text
    return text


class Schemas:
    """Both schemas, loaded once."""

    def __init__(self):
        imports = [str(pathlib.Path(capnp.__file__).parents[1])]
        self.folder = tempfile.TemporaryDirectory(prefix='althing-later-')
        later = pathlib.Path(self.folder.name) / 'later.capnp'
        later.write_text(later_schema(SCHEMA.read_text()))
        self.parser = capnp.SchemaParser()
        self.now, self.later = self.parser.load(str(SCHEMA), imports=imports), self.parser.load(str(later), imports=imports)


loaded, loading = {}, threading.Lock()


def schemas():
    with loading:
        if not loaded:
            loaded['both'] = Schemas()
        return loaded['both']


def with_later_members(value):
    """Every object gets members that nobody knows."""
    if isinstance(value, dict):
        return {'later_first': [1, {'deep': None}], **{key: with_later_members(inner) for key, inner in value.items()}, 'later_last': 'new'}
    return [with_later_members(inner) for inner in value] if isinstance(value, list) else value


def grow(builder):
    builder.laterText, builder.laterNumber = 'new', 2 ** 60


def put_event(to, event, later):
    to.index = event['index']
    if event['type'] == 'message_started':
        started = to.init('started')
        started.role, started.channel, started.recipient, started.contentType = event['role'], event['channel'], event['recipient'], event['content_type']
        if later:
            grow(started)
    elif event['type'] == 'text':
        to.text = event['text']
    elif event['type'] == 'message_ended':
        to.ended = None
    else:
        to.later = 'an event of a later version'
    if later:
        grow(to)


def put_failure(to, error, later):
    to.code, to.message, to.field = re.sub(r'_(\w)', lambda match: match[1].upper(), error['code']), error['message'], error['field']
    if later:
        grow(to)


def put_done(to, message):
    usage = message['usage']
    to.reason, to.promptTokens, to.completionTokens, to.preemptions = (message['reason'], usage['prompt_tokens'], usage['completion_tokens'],
                                                                       usage['preemptions'])
    ends = message.get('choices', [])
    for part, end in zip(to.init('choices', len(ends)), ends):
        part.reason, part.completionTokens, part.preemptions = end['reason'], end['completion_tokens'], end['preemptions']
        if 'error' in end:
            put_failure(part.init('error'), end['error'], False)


def capnp_of(message, later):
    # Kinds and events of later versions can only be said with the later schema.
    new = message['type'] == 'later' or any(event['type'] == 'later' for event in message.get('events', []))
    frame = (schemas().later if later or new else schemas().now).ServerFrame.new_message()
    kind = message['type']
    if message.get('request_id'):
        frame.requestId = message['request_id']
    frame.sequence = message.get('sequence', 0)
    if kind == 'later':
        frame.later = 'a message of a later version'
        return frame.to_bytes()
    member = frame.init(kind)
    if kind == 'delta':
        member.choice, member.tokens = message['choice'], message['tokens']
        for part, event in zip(member.init('events', len(message['events'])), message['events']):
            put_event(part, event, later)
    elif kind == 'done':
        put_done(member, message)
    elif kind == 'error':
        put_failure(member, message['error'], later)
    else:
        names = {'version': 'version', 'server_instance': 'serverInstance', 'model': 'model', 'context_tokens_max': 'contextTokensMax', 'nonce': 'nonce',
                 'frame_bytes_max': 'frameBytesMax', 'session_silence_ms_max': 'sessionSilenceMsMax', 'prompt_tokens': 'promptTokens', 'seed': 'seed'}
        for name, key in names.items():
            if name in message:
                setattr(member, key, int(message[name]) if name == 'seed' else message[name])
    if later:
        grow(frame)
        grow(member)
    return frame.to_bytes()


def encode(message, encoding, later=False):
    """The two parts of what a server sends."""
    if encoding == 'capnp':
        return [HEADERS['capnp'], capnp_of(message, later)]
    return [HEADERS['json'], json.dumps(with_later_members(message) if later else message).encode()]


def once(pairs):
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise NotAFrame(f'a key stands twice in one object: {keys}')
    return dict(pairs)


def client_message(frame):
    """A client's Cap'n Proto frame as the dict that its JSON would be, as far as the kit looks."""
    kind, request = str(frame.which()), {'request_id': frame.requestId} if frame.requestId else {}
    if kind == 'cancel':
        return {'type': kind, **request}
    member = getattr(frame, kind)
    if kind == 'submit':
        said = [{'role': str(message.role), 'content': ''.join(part.text for part in message.content)} for message in member.messages]
        return {'type': kind, **request, 'messages': said, 'credit': member.credit, 'timeout_ms': member.timeoutMs, 'sampling': {'n': member.sampling.n}}
    names = {'versionMin': 'version_min', 'versionMax': 'version_max', 'clientId': 'client_id', 'clientName': 'client_name', 'lastSequence': 'last_sequence'}
    return {'type': kind, **request, **{names.get(key, key): value for key, value in member.to_dict().items()}}


def decode(parts):
    """What a client sent, and its encoding. Raises NotAFrame with the reason."""
    if len(parts) == 3 and not parts[0]:
        parts = parts[1:]
    if len(parts) != 2 or parts[0] not in HEADERS.values():
        raise NotAFrame(f'{len(parts)} parts, the header {parts[0][:16]!r}')
    if parts[0] == HEADERS['json']:
        try:
            message = json.loads(parts[1], object_pairs_hook=once)
        except ValueError as error:
            raise NotAFrame(f'no JSON: {error}') from None
        if not isinstance(message, dict) or not isinstance(message.get('type'), str):
            raise NotAFrame('no object with a type')
        return message, 'json'
    if len(parts[1]) % 8:
        raise NotAFrame('a Cap\'n Proto body that is no multiple of 8 bytes')
    try:
        with schemas().now.ClientFrame.from_bytes(parts[1]) as frame:
            return client_message(frame), 'capnp'
    except Exception as error:  # pycapnp has no narrower kind
        raise NotAFrame(f'no Cap\'n Proto message: {error}') from None
