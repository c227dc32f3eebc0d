#!/usr/bin/env python3
"""Answers that are held to grammars: hot draws of the tiny model under many schemas are valid by a checker that shares nothing with the server, or were cut by length; neighbours in
the batch do not notice; and a dead rank, a dead core, preemptions and choices change no byte of them."""
import json
import os
import re
import signal

from core_death_test import finish, outcomes, pump, split_run
from harness import Client, Server, conversations, main, wait_for

try:
    import jsonschema
except ImportError:
    jsonschema = None

CASES = conversations(8)
HOT = {'temperature': 1.4, 'completion_tokens_max': 600}
GENERATIONS = 400  # of `generations_are_valid`

PERSON = {'type': 'object', 'additionalProperties': False, 'required': ['name', 'age'],
          'properties': {'name': {'type': 'string', 'minLength': 1, 'maxLength': 20}, 'age': {'type': 'integer', 'minimum': 0, 'maximum': 150},
                         'email': {'anyOf': [{'type': 'string', 'maxLength': 10}, {'type': 'null'}]}, 'tags': {'type': 'array', 'items': {'enum': ['new', 'old', 7, None]}, 'maxItems': 3}}}
TREE = {'$ref': '#/$defs/node', '$defs': {'node': {'type': 'object', 'required': ['v'], 'additionalProperties': False, 'properties': {
    'v': {'type': 'number', 'exclusiveMinimum': -2.5, 'maximum': 10}, 'kids': {'type': 'array', 'maxItems': 2, 'items': {'$ref': '#/$defs/node'}}}}}}
SCHEMAS = [
    PERSON,
    TREE,
    {'type': 'string', 'pattern': '^[A-Z]{2}-\\d{3}$'},
    {'type': 'array', 'items': {'type': 'boolean'}, 'minItems': 2, 'maxItems': 5},
    {'oneOf': [{'type': 'object', 'required': ['kind', 'x'], 'additionalProperties': False, 'properties': {'kind': {'const': 'a'}, 'x': {'type': 'null'}}},
               {'type': 'object', 'required': ['kind'], 'additionalProperties': False, 'properties': {'kind': {'const': 'b'}, 'y': {'type': 'integer'}}}]},
    {'type': 'object', 'additionalProperties': {'type': 'integer', 'minimum': -3, 'maximum': 3}, 'properties': {'first': {'type': 'string', 'maxLength': 4}}, 'required': ['first']},
    {'type': ['integer', 'null'], 'minimum': 5, 'exclusiveMaximum': 1000},
    {'type': 'string', 'minLength': 3, 'maxLength': 6},
    {'enum': ['red', 'green', {'deep': ['blue']}, 12, None, 'quote " and \\ slash', 'ünï']},
    {'type': 'array', 'prefixItems': [{'type': 'string', 'maxLength': 5}, {'type': 'number', 'minimum': 0, 'maximum': 1}], 'items': False, 'minItems': 2},
]


def fails(value, schema, root):
    """Why a value does not satisfy a schema, or None. Written for these schemas, from the text of JSON Schema 2020-12."""
    if isinstance(schema, bool):
        return None if schema else 'false'
    if '$ref' in schema:
        target = root
        for name in schema['$ref'].split('/')[1:]:
            target = target[name]
        return fails(value, target, root)
    kinds = {'object': dict, 'array': list, 'string': str, 'boolean': bool, 'null': type(None)}

    def is_a(kind):
        if kind in ('integer', 'number'):
            return isinstance(value, (int, float)) and not isinstance(value, bool) and (kind == 'number' or value == int(value))
        return isinstance(value, kinds[kind])

    wanted = schema.get('type', [])
    if wanted and not any(is_a(kind) for kind in ([wanted] if isinstance(wanted, str) else wanted)):
        return f'{value!r} is no {wanted}'
    if 'const' in schema and json.dumps(value) != json.dumps(schema['const']) or 'enum' in schema and json.dumps(value) not in map(json.dumps, schema['enum']):
        return f'{value!r} is another value'
    for word, least, most in (('anyOf', 1, 99), ('oneOf', 1, 1)):
        if word in schema and not least <= sum(fails(value, part, root) is None for part in schema[word]) <= most:
            return f'{value!r} breaks {word}'
    if isinstance(value, str):
        if not schema.get('minLength', 0) <= len(value) <= schema.get('maxLength', 10 ** 9) or 'pattern' in schema and not re.search(schema['pattern'], value):
            return f'{value!r} has another length or pattern'
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not schema.get('minimum', value) <= value <= schema.get('maximum', value) or value <= schema.get('exclusiveMinimum', value - 1) or value >= schema.get('exclusiveMaximum', value + 1):
            return f'{value!r} is out of range'
    if isinstance(value, list):
        if not schema.get('minItems', 0) <= len(value) <= schema.get('maxItems', 10 ** 9):
            return f'{len(value)} items'
        first = schema.get('prefixItems', [])
        for index, item in enumerate(value):
            if why := fails(item, first[index] if index < len(first) else schema.get('items', True), root):
                return why
    if isinstance(value, dict):
        named = schema.get('properties', {})
        if missing := set(schema.get('required', [])) - set(value):
            return f'{missing} are missing'
        for name, member in value.items():
            if why := fails(member, named[name] if name in named else schema.get('additionalProperties', True), root):
                return f'{name}: {why}'
    return None


def answer_of(choice):
    """The text of the final channel; None when the model never came to it."""
    finals = [text for recipient_or_channel, text, _ in choice.story if recipient_or_channel == 'final']
    assert len(finals) <= 1, choice.story
    return finals[0] if finals else None


def twice(pairs):
    """JSON objects as pairs, so that a key that comes twice is seen."""
    assert len({key for key, _ in pairs}) == len(pairs) or all(isinstance(value, int) for _, value in pairs), f'a key twice: {pairs}'
    return dict(pairs)


def judge(choice, reason, schema, counts):
    text = answer_of(choice)
    if text is None:
        counts['no answer'] += 1
        assert all(channel in ('analysis', 'commentary', '') or '.' in channel for channel, _, _ in choice.story), choice.story
        return
    if reason == 'length':
        counts['cut'] += 1
        return
    assert reason == 'stop', reason
    try:
        value = json.loads(text, object_pairs_hook=twice)
    except ValueError as error:
        raise AssertionError(f'no JSON under {schema}: {text!r}') from error
    assert (why := fails(value, schema, schema)) is None, f'{why}: {text!r} under {schema}'
    if jsonschema:
        jsonschema.Draft202012Validator(schema).validate(value)
    counts['valid'] += 1


def generate(client, generations, start=0, n=16):
    counts, waiting, asked = {'valid': 0, 'cut': 0, 'no answer': 0}, {}, 0
    while asked < generations or waiting:
        while asked < generations and len(waiting) < 8:
            key, schema = f'g{start + asked}', SCHEMAS[asked // n % len(SCHEMAS)]
            client.submit(key, CASES[asked // n % len(CASES)]['messages'], sampling={**HOT, 'seed': start + asked, 'n': min(n, generations - asked)}, grammar={'json_schema': schema})
            waiting[key] = schema
            asked += min(n, generations - asked)
        client.step()
        for key in [key for key in waiting if client.streams[key].end]:
            stream, schema = client.streams.pop(key), waiting.pop(key)
            assert stream.end['type'] == 'done', (stream.end, schema)
            ends = stream.end.get('choices') or [stream.end]
            for choice, end in zip(stream.choices, ends):
                judge(choice, end['reason'], schema, counts)
    return counts


def generations_are_valid():
    with Server('--rows', '64', '--sequences', '256') as server, Client(server.endpoint) as client:
        counts = generate(client, GENERATIONS)
        print(f'  {GENERATIONS} generations: {counts}' + ('' if jsonschema else '; jsonschema is not installed (tools/oracles.txt)'))
        assert sum(counts.values()) == GENERATIONS and counts['valid'] > GENERATIONS / 2, counts
        assert 'fault ' not in server.log()


def neighbours_without_a_grammar_notice_nothing():
    def submit(client, prefix):
        for number in range(6):
            client.submit(f'{prefix}{number}', CASES[number]['messages'], sampling={'temperature': 1.0, 'seed': number, 'completion_tokens_max': 120, 'ignore_stop': True, 'logprobs': 2})

    with Server() as server, Client(server.endpoint) as client:
        submit(client, 'alone-')
        client.finish()
        submit(client, 'mixed-')
        for number in range(6):
            client.submit(f'held{number}', CASES[number]['messages'], sampling={**HOT, 'seed': number, 'n': 2}, grammar={'json_schema': SCHEMAS[number]})
        client.finish()
        assert outcomes([client], 'mixed-') == outcomes([client], 'alone-')
        counts = {'valid': 0, 'cut': 0, 'no answer': 0}
        for number in range(6):
            for choice, end in zip(client.streams[f'held{number}'].choices, client.streams[f'held{number}'].end['choices']):
                judge(choice, end['reason'], SCHEMAS[number], counts)
        assert counts['valid'] > 6, counts


def submit_held(client, prefix):
    for number in range(5):
        client.submit(f'{prefix}{number}', CASES[number]['messages'],
                      sampling={**HOT, 'completion_tokens_max': 300, 'seed': 40 + number, 'n': 2, 'frequency_penalty': 0.3, 'logprobs': 3}, grammar={'json_schema': (PERSON, TREE)[number % 2]})


def in_the_middle_of_answers(streams):
    return sum(any(channel == 'final' and text and not ended for channel, text, ended in choice.story) for stream in streams for choice in stream.choices) >= 3


def a_dead_core_changes_no_byte():
    split_run(submit_held, in_the_middle_of_answers, 'grammars are followed from the log', count=2)


def a_dead_rank_changes_no_byte():
    with Server() as server:
        client = Client(server.endpoint)
        submit_held(client, 'whole-')
        finish([client])
        submit_held(client, 'split-')
        streams = [stream for key, stream in client.streams.items() if key.startswith('split-')]
        pump([client], lambda: in_the_middle_of_answers(streams), 'answers have begun')
        epoch, victim = server.epoch(), server.children()['rank1']
        os.kill(victim, signal.SIGKILL)
        finish([client])
        wait_for('another membership', lambda: server.ready(epoch), 30)
        assert server.children()['rank1'] != victim
        assert outcomes([client], 'split-') == outcomes([client], 'whole-')
        client.close()


def preemption_changes_no_byte():
    results = []
    for flags in ((), ('--kv-mib', '4')):
        with Server('--rows', '16', *flags) as server, Client(server.endpoint) as client:
            submit_held(client, '')
            finish([client])
            results.append(outcomes([client], ''))
            print(f'  {flags}: {server.metric("althing_preemptions_total"):.0f} preemptions')
    assert results[0] == results[1]


def the_other_kinds_and_raw_prompts():
    with Server() as server, Client(server.endpoint) as client:
        client.submit('object', CASES[0]['messages'], sampling={**HOT, 'seed': 1}, grammar={'json_object': True})
        client.submit('regex', CASES[0]['messages'], sampling={**HOT, 'seed': 2}, grammar={'regex': '(yes|no), [a-z]{3,9}\\.'})
        client.submit('raw', prompt_tokens=CASES[1]['completion_ids'][:20], sampling={**HOT, 'seed': 3}, grammar={'regex': '[0-9]{4}'})
        client.submit('greedy', CASES[0]['messages'], grammar={'json_schema': PERSON})
        client.finish()
        text = answer_of(client.streams['regex'].choices[0])
        assert text is None or re.fullmatch('(yes|no), [a-z]{3,9}\\.', text), text
        for key in ('object', 'greedy'):
            stream = client.streams[key]
            assert stream.end['type'] == 'done', stream.end
            if stream.end['reason'] == 'stop' and (text := answer_of(stream.choices[0])) is not None:
                assert isinstance(json.loads(text), dict), text
        assert client.streams['raw'].end['reason'] == 'stop' and 2 <= len(client.streams['raw'].tokens) <= 5, client.streams['raw'].tokens


def what_cannot_be_held_is_refused_by_name():
    refusals = [({'json_schema': {'properties': {'a': {'uniqueItems': True}}}}, 'unsupported', ('uniqueItems', '#/properties/a')), ({'regex': '(?=a)'}, 'unsupported', ('lookahead',)),
                ({'regex': '('}, 'invalid_argument', ('byte',)), ({'json_schema': {'type': 'strng'}}, 'invalid_argument', ('strng',)), ({}, 'invalid_argument', ('json_schema',)),
                ({'regex': 'a', 'json_object': True}, 'invalid_argument', ('one of',)), ({'json_schema': {'type': 'integer', 'minimum': 2, 'maximum': 1}}, 'invalid_argument', ('no text',))]
    with Server() as server, Client(server.endpoint) as client:
        for number, (grammar, code, words) in enumerate(refusals):
            client.submit(f'r{number}', CASES[0]['messages'], grammar=grammar)
        client.submit('on and on', CASES[0]['messages'], grammar={'json_object': True}, sampling={'ignore_stop': True})
        client.finish()
        for number, (grammar, code, words) in enumerate(refusals):
            error = client.streams[f'r{number}'].end['error']
            assert error['code'] == code and error['field'].startswith('grammar') and all(word in error['message'] for word in words), (grammar, error)
        assert client.streams['on and on'].end['error']['field'] == 'ignore_stop'
    with Server('--device', 'synthetic') as server, Client(server.endpoint) as client:
        client.submit('r', CASES[0]['messages'], grammar={'json_object': True})
        client.finish()
        assert client.streams['r'].end['error']['code'] == 'unsupported', client.streams['r'].end


if __name__ == '__main__':
    main(generations_are_valid, neighbours_without_a_grammar_notice_nothing, a_dead_core_changes_no_byte, a_dead_rank_changes_no_byte, preemption_changes_no_byte,
         the_other_kinds_and_raw_prompts, what_cannot_be_held_is_refused_by_name)
