"""Cap'n Proto bodies, by the schema itself: members are found by their names, so one that is added to the schema needs no line here as long as it has the
form of the others. What does not (contents of messages, schemas of tools, rows of routing) is written out."""
from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

try:
    import capnp  # type: ignore[import-untyped]
except ImportError as error:
    raise ImportError('the encoding "capnp" needs pycapnp: pip install "althing-client[capnp]"') from error

from .codec import Unreadable
from .errors import Unsupported

# A parser of our own: pycapnp's shared one ends the process when a program loads another copy of this schema.
PARSER = capnp.SchemaParser()
SCHEMA = PARSER.load(str(pathlib.Path(__file__).resolve().parent / 'wire.capnp'), imports=[str(pathlib.Path(capnp.__file__).parents[1])])
BYTES_MAX = 64 << 20


def camel(name: str) -> str:
    return re.sub(r'_(\w)', lambda match: match[1].upper(), name)


def snake(name: str) -> str:
    return re.sub(r'[A-Z]', lambda match: '_' + match[0].lower(), name)


def put(builder: Any, members: Mapping[str, Any], where: str) -> None:
    """Sets members by their names. A union of `unset` and `value` is an optional number."""
    for name, value in members.items():
        if value is None:
            continue
        key = camel(name)
        if key not in builder.schema.fields:
            raise Unsupported(f'{where}{name} is not known to the schema of this package; use the encoding "json", or update it', where + name)
        field = builder.schema.fields[key]
        try:
            if field.proto.which() == 'group':
                # 64-bit numbers may be strings of digits in JSON.
                getattr(builder, key).value = int(value) if isinstance(value, str) and value.isdecimal() else value
            else:
                setattr(builder, key, value)
        except Exception as error:  # pycapnp raises what it likes for a value of the wrong kind
            raise TypeError(f'{where}{name} cannot be {value!r}: {error}') from None


def put_functions(builder: Any, functions: list[Mapping[str, Any]]) -> None:
    for to, function in zip(builder, functions):
        to.name, to.description = function['name'], function.get('description') or ''
        if function.get('parameters') is not None:
            to.parameters = json.dumps(function['parameters'], ensure_ascii=False, separators=(',', ':'))


def put_namespaces(builder: Any, namespaces: Any) -> None:
    items = list(namespaces.items())
    for to, (key, namespace) in zip(builder.init('tools', len(items)), items):
        to.key, to.name = key, namespace.get('name') or key
        if namespace.get('description') is not None:
            to.description = namespace['description']
        functions = namespace.get('tools') or []
        put_functions(to.init('functions', len(functions)), functions)


def put_content(to: Any, content: Mapping[str, Any]) -> None:
    kind = content.get('type')
    if kind == 'text':
        to.text = content['text']
    elif kind == 'system_content':
        system = to.init('system')
        rest = {name: value for name, value in content.items() if name not in ('type', 'tools', 'channel_config', 'reasoning_effort')}
        put(system, rest, 'content.')
        if content.get('reasoning_effort'):
            system.reasoningEffort = content['reasoning_effort'].lower()
        if content.get('channel_config'):
            put(system.init('channelConfig'), content['channel_config'], 'channel_config.')
        put_namespaces(system, content.get('tools') or {})
    elif kind == 'developer_content':
        developer = to.init('developer')
        if content.get('instructions') is not None:
            developer.instructions = content['instructions']
        put_namespaces(developer, content.get('tools') or {})
    else:
        raise Unsupported(f'a content of type {kind!r} is not known to this package', 'content')


def put_message(to: Any, message: Mapping[str, Any]) -> None:
    contents = message.get('content') or ''
    contents = [{'type': 'text', 'text': contents}] if isinstance(contents, str) else contents
    put(to, {name: value for name, value in message.items() if name != 'content'}, 'messages.')
    for part, content in zip(to.init('content', len(contents)), contents):
        put_content(part, content)


def put_sampling(to: Any, sampling: Mapping[str, Any]) -> None:
    biases = sampling.get('logit_bias') or {}
    for part, (token, bias) in zip(to.init('logitBias', len(biases)), biases.items()):
        put(part, {'token': int(token), 'bias': bias}, 'sampling.logit_bias.')
    put(to, {name: value for name, value in sampling.items() if name != 'logit_bias'}, 'sampling.')


def put_grammar(to: Any, grammar: Mapping[str, Any] | None) -> None:
    if grammar is None:
        return
    for name, value in grammar.items():
        if name not in ('json_schema', 'json_object', 'regex'):
            raise Unsupported(f'a grammar of the kind {name!r} is not known to this package', 'grammar.' + name)
        as_text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(',', ':'))
        setattr(to.grammar, camel(name), None if name == 'json_object' else as_text)


def put_submit(to: Any, submit: Mapping[str, Any]) -> None:
    messages, tools = submit.get('messages') or [], submit.get('tools') or []
    for part, message in zip(to.init('messages', len(messages)), messages):
        put_message(part, message)
    put_functions(to.init('tools', len(tools)), tools)
    put_sampling(to.init('sampling'), submit.get('sampling') or {})
    put_grammar(to, submit.get('grammar'))
    put(to, {name: value for name, value in submit.items() if name not in ('type', 'request_id', 'messages', 'tools', 'sampling', 'grammar')}, '')


def plain(value: Any) -> Any:
    """A reader's dict with the wire's JSON names, enumerants too; values are untouched."""
    if isinstance(value, dict):
        return {snake(name): plain(inner) for name, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


EVENT_KINDS = {'started': 'message_started', 'text': 'text', 'ended': 'message_ended'}


def event_of(event: Any) -> dict[str, Any]:
    try:
        kind = event.which()
    except Exception:  # a kind that this schema does not have
        return {'type': '', 'index': event.index}
    kind = str(kind)
    if kind == 'started':
        return {'type': EVENT_KINDS[kind], 'index': event.index, **plain(event.started.to_dict())}
    return {'type': EVENT_KINDS.get(kind, ''), 'index': event.index, **({'text': event.text} if kind == 'text' else {})}


def routing_of(part: Any) -> dict[str, Any]:
    members: dict[str, Any] = plain(part.to_dict())
    times = members['nanoseconds']
    members['nanoseconds'] = [times[at:at + 5] for at in range(0, len(times), 5)]
    members['logits'] = [[row['expert'], row['logit']] for row in members['logits']]
    members['experts'] = [[row[name] for name in ('expert', 'chosen', 'copy', 'rank', 'slot', 'fate', 'weight')] for row in members['experts']]
    return members


def others(reader: Any, known: set[str]) -> dict[str, Any]:
    """The members that the schema has and nobody here knows by name."""
    return {snake(name): value_of(getattr(reader, name)) for name in set(reader.schema.fieldnames) - known}


def value_of(value: Any) -> Any:
    if hasattr(value, 'to_dict'):
        return plain(value.to_dict())
    return [value_of(each) for each in value] if hasattr(value, '__len__') and not isinstance(value, (str, bytes)) else value


def logprobs_of(part: Any) -> dict[str, Any]:
    return {'token': part.token, 'logprob': part.logprob, 'top': [[each.token, each.logprob] for each in part.top]}


def stop_string_of(end: Any) -> dict[str, Any]:
    return {} if end.stopString < 0 else {'stop_string': end.stopString}


def delta_of(delta: Any) -> dict[str, Any]:
    own = {'events': [event_of(event) for event in delta.events], 'tokens': list(delta.tokens), 'choice': delta.choice,
           'routing': [routing_of(part) for part in delta.routing], 'logprobs': [logprobs_of(part) for part in delta.logprobs]}
    return {**others(delta, set(own)), **own}


def failure_of(failure: Any) -> dict[str, Any]:
    try:
        code = snake(str(failure.code))
    except Exception:  # of a later version
        code = 'internal'
    wait = {'retry_after_ms': failure.retryAfterMs} if failure.retryAfterMs else {}
    return {'code': code, 'message': failure.message, 'field': failure.field, **wait}


def miss_of(done: Any) -> str:
    try:
        word = str(done.miss)
    except Exception:  # of a later version
        return 'none'
    return 'short' if word == 'shortPrompt' else word


def done_of(done: Any) -> dict[str, Any]:
    usage = {'prompt_tokens': done.promptTokens, 'completion_tokens': done.completionTokens, 'preemptions': done.preemptions,
             'reasoning_tokens': done.reasoningTokens, 'cached_tokens': done.cachedTokens}
    if (miss := miss_of(done)) != 'none':
        usage['miss'] = miss
    ends = [{'reason': str(end.reason), 'completion_tokens': end.completionTokens, 'preemptions': end.preemptions,
             **stop_string_of(end), **({'error': failure_of(end.error)} if end._has('error') else {})} for end in done.choices]
    known = {'reason', 'promptTokens', 'completionTokens', 'preemptions', 'reasoningTokens', 'choices', 'layoutChanged', 'stopString', 'cachedTokens', 'miss'}
    return {**others(done, known), 'reason': str(done.reason), 'usage': usage, 'choices': ends, 'layout_changed': done.layoutChanged, **stop_string_of(done)}


class CapnpCodec:
    letter = b'c'

    def encode(self, message: Mapping[str, Any]) -> bytes:
        frame = SCHEMA.ClientFrame.new_message()
        if message.get('request_id'):
            frame.requestId = message['request_id']
        kind = message['type']
        members = {name: value for name, value in message.items() if name not in ('type', 'request_id')}
        if kind == 'submit':
            put_submit(frame.init('submit'), message)
        elif kind == 'cancel':
            frame.cancel = None
        else:
            put(frame.init(kind), members, kind + '.')
        return bytes(frame.to_bytes())

    def decode(self, body: bytes) -> dict[str, Any]:
        if not body or len(body) % 8 or len(body) > BYTES_MAX:
            raise Unreadable('the length is that of no message')
        try:
            with SCHEMA.ServerFrame.from_bytes(body, traversal_limit_in_words=len(body) // 8 + 8) as frame:
                return self._message(frame)
        except Exception as error:  # pycapnp has no narrower kind
            raise Unreadable(str(error)) from None

    @staticmethod
    def _message(frame: Any) -> dict[str, Any]:
        head = {'request_id': frame.requestId, 'sequence': frame.sequence}
        try:
            kind = str(frame.which())
        except Exception:  # a kind that this schema does not have
            return {'type': '', **head}
        member = getattr(frame, kind)
        if kind == 'delta':
            return {'type': kind, **head, **delta_of(member)}
        if kind == 'done':
            return {'type': kind, **head, **done_of(member)}
        if kind == 'error':
            return {'type': kind, **head, 'error': failure_of(member)}
        return {'type': kind, **head, **plain(member.to_dict())}
