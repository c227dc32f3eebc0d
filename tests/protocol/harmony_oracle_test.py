#!/usr/bin/env python3
"""Our Harmony renderer and parser against openai-harmony itself: generated conversations must render to equal ids, be refused in equal words, and read back as equal messages.

Both get the same JSON. What is left out, because we differ on purpose (docs/harmony.md) or the package cannot be compared:
- our own policy for analysis: the package's is compared, by the name `upstream`, and `keep`;
- schemas nested deeper than 128 levels, which we refuse and serde_json cannot read;
- members of a wrong type and members that are missing, which we refuse with a path or fill in: system contents here say all they have, null where it is nothing;
- one name twice in an object: we refuse it, serde_json takes the last;
- numbers that are written in ways that their readers round differently: floats here have at most 15 digits;
- code points that Unicode 14 does not assign: the two programs have tables of different versions.
"""
import argparse
import json
import os
import pathlib
import random
import subprocess
import sys
import unicodedata

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The package looks here for o200k_base.tiktoken before it would download it.
os.environ['TIKTOKEN_ENCODINGS_BASE'] = str(ROOT / 'tests/data')
try:
    import openai_harmony
except ImportError:
    openai_harmony = None

WORDS = ['weather', 'Tokyo', "I'll", "don't", "WE'RE", 'naïve', 'Straße', 'λόγος', 'Привет', 'мир', 'こんにちは', '漢字', '한국어', 'שלום', 'مرحبا', 'नमस्ते', 'ไทย', 'e\u0301', '👍🏽', '👩‍👩‍👧', '🇯🇵',
         'x' * 40, '1234567', '3.14159', '²½Ⅷ', '--', '...', '/path/to', 'https://a.example/?q=1', 'camelCaseWord', 'SHOUT', 'foo_bar', '{"k": 1}', '```', '\u00a0', '\u3000', '\u200b', '\ufeff', '\0', '’s', 'ſ',
         'null', 'to=functions.f', 'assistant', 'analysis', '\\', '"', '#', '//']
SPACES = [' ', ' ', ' ', '  ', '\n', '\r\n', '\n\n', '\t', '   \n ', '']
CONTROLS = ['<|start|>', '<|end|>', '<|message|>', '<|channel|>', '<|constrain|>', '<|call|>', '<|return|>', '<|endoftext|>', '<|reserved_200000|>', '<|endofprompt|>', '<|', '|>']
NAMES = ['get_weather', 'search', 'f', 'lookup-it', 'a.b', 'Zahl', 'x1']
ROLES = ['system', 'developer', 'user', 'assistant', 'tool']


class Generator:
    """One conversation, from a seed."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def chance(self, probability):
        return self.random.random() < probability

    def code_point(self):
        while True:
            code = self.random.choice([self.random.randrange(0x20, 0x250), self.random.randrange(0x250, 0x3000), self.random.randrange(0x3000, 0x10000), self.random.randrange(0x10000, 0x20000)])
            if unicodedata.category(chr(code)) not in ('Cn', 'Cs', 'Co'):
                return chr(code)

    def text(self, words=8):
        out = ''
        for _ in range(self.random.randint(0, words)):
            kind = self.random.random()
            out += self.random.choice(WORDS) if kind < 0.75 else self.random.choice(CONTROLS) if kind < 0.85 else ''.join(self.code_point() for _ in range(self.random.randint(1, 6)))
            out += self.random.choice(SPACES)
        return out

    def line(self):
        return ' '.join(self.text(4).split())

    def any_json(self, depth=2):
        kinds = [lambda: None, lambda: self.chance(0.5), lambda: self.random.randint(-10**6, 10**6), lambda: self.random.choice([0, -1, 2**53, 2**63 - 1, -2**63, 2**64 - 1]),
                 lambda: self.line(), lambda: round(self.random.uniform(-1000, 1000), self.random.randint(1, 6)), lambda: self.random.choice([0.0, -0.0, 1e15, 1e16, 1e21, 1.5e-5, 1e-6, 2.5e-7, 1e300])]
        if depth > 0:
            kinds += [lambda: [self.any_json(depth - 1) for _ in range(self.random.randint(0, 3))],
                      lambda: {self.line(): self.any_json(depth - 1) for _ in range(self.random.randint(0, 3))}]
        return self.random.choice(kinds)()

    def schema(self, depth=3):
        if self.chance(0.03):
            return self.any_json()
        one = {}
        if self.chance(0.3):
            one['title'] = self.line() if self.chance(0.9) else self.any_json(0)
        if self.chance(0.4):
            one['description'] = self.text(4) if self.chance(0.95) else self.any_json(0)
        kind = self.random.choice(['string', 'string', 'number', 'integer', 'boolean', 'array', 'object', 'object', 'oneOf', 'list', 'other'])
        if depth == 0 and kind in ('array', 'object', 'oneOf'):
            kind = 'string'
        if kind == 'oneOf':
            one['oneOf'] = [self.schema(depth - 1) for _ in range(self.random.randint(0, 3))] if self.chance(0.95) else self.any_json(0)
            if self.chance(0.2):
                one['type'] = 'string'
        elif kind == 'list':
            one['type'] = [self.random.choice(['string', 'integer', 'number', 'null', 'object', 'boolean', 7]) for _ in range(self.random.randint(0, 3))]
        elif kind == 'other':
            one.update(self.random.choice([{}, {'anyOf': [{'type': 'string'}]}, {'$ref': '#/a'}, {'const': 3}, {'type': 'null'}, {'type': 5}, {'type': None}, {'enum': ['a', 'b']}, {'type': 'weird'}]))
        else:
            one['type'] = kind
        if kind == 'object' and self.chance(0.95):
            names = [self.random.choice(NAMES + ['größe', 'with space', '$x', '']) + str(i) * self.chance(0.7) for i in range(self.random.randint(0, 4))]
            one['properties'] = {name: self.schema(depth - 1) for name in names}
            if self.chance(0.6):
                one['required'] = [name for name in names if self.chance(0.5)] + ([3] if self.chance(0.1) else [])
        if kind == 'array' and self.chance(0.8):
            one['items'] = self.schema(depth - 1)
        if self.chance(0.25):
            one['enum'] = [self.random.choice([self.line(), 'a', 'b c', 3, None]) for _ in range(self.random.randint(0, 3))]
        if self.chance(0.25):
            one['default'] = self.any_json()
        if self.chance(0.2):
            one['examples'] = [self.random.choice([self.line(), 4]) for _ in range(self.random.randint(0, 3))]
        if self.chance(0.2):
            one['nullable'] = self.random.choice([True, True, False, 'yes', None])
        if self.chance(0.2):
            one.update({'minimum': 1, 'pattern': '^a', 'additionalProperties': False})
        members = list(one.items())
        self.random.shuffle(members)
        return dict(members)

    def function(self):
        function = {'name': self.random.choice(NAMES), 'description': self.text(6)}
        if self.chance(0.85):
            schema = self.schema()
            function['parameters'] = None if self.chance(0.1) else {**schema, 'type': 'object'} if isinstance(schema, dict) and self.chance(0.7) else schema
        return function

    def tools(self, builtin):
        keys = self.random.sample(['functions', 'web', 'Über', 'a', 'zz'], self.random.randint(0, 2))
        tools = {key: {'name': key if self.chance(0.9) else self.line(), 'tools': [self.function() for _ in range(self.random.randint(0, 3))]} for key in keys}
        for space in tools.values():
            if self.chance(0.5):
                space['description'] = self.text(6) if self.chance(0.9) else None
        if builtin and self.chance(0.3):
            tools['browser'] = 'BUILTIN_BROWSER'
        if builtin and self.chance(0.3):
            tools['python'] = 'BUILTIN_PYTHON'
        return tools

    def system_content(self):
        part = {'type': 'system_content'}
        for member, value in (('model_identity', self.text), ('knowledge_cutoff', self.line), ('conversation_start_date', lambda: '2026-01-02'), ('reasoning_effort', lambda: self.random.choice(['Low', 'Medium', 'High'])),
                              ('channel_config', lambda: {'valid_channels': self.random.sample(['analysis', 'commentary', 'final', 'x y'], self.random.randint(0, 4)), 'channel_required': self.chance(0.5)}),
                              ('tools', lambda: self.tools(True))):
            part[member] = value() if self.chance(0.6) else None
        return part

    def developer_content(self):
        part = {'type': 'developer_content'}
        if self.chance(0.7):
            part['instructions'] = self.text(20) if self.chance(0.95) else None
        if self.chance(0.7):
            part['tools'] = self.tools(False) if self.chance(0.95) else None
        return part

    def plain(self):
        return self.text(20) if self.chance(0.8) else [{'type': 'text', 'text': self.text(6)} for _ in range(self.random.randint(0, 3))]

    def turn(self):
        yield {'role': 'user', 'content': self.plain(), **({'name': self.random.choice(['alice', 'bob b', 'ü'])} if self.chance(0.1) else {})}
        for _ in range(self.random.randint(0, 3)):
            if self.chance(0.6):
                yield {'role': 'assistant', 'channel': 'analysis', 'content': self.plain()}
            if self.chance(0.3):
                yield {'role': 'assistant', 'channel': 'commentary', 'content': self.plain()}
            name = self.random.choice(['functions.' + self.random.choice(NAMES), 'browser.search', 'python', 'all'])
            kind = self.random.choice([None, 'json', '<|constrain|>json', '<|constrain|> json', '<|constrain|>', 'code', ''])
            yield {'role': 'assistant', 'recipient': name, 'channel': self.random.choice(['commentary', 'commentary', 'analysis']), 'content': json.dumps(self.any_json()), **({} if kind is None else {'content_type': kind})}
            yield {'role': 'tool', 'name': name, 'recipient': 'assistant', 'channel': 'commentary', 'content': self.plain()}
        if self.chance(0.8):
            yield {'role': 'assistant', 'channel': 'final', 'content': self.plain()}

    def wild(self):
        """Any role with any member; now and then one that both must refuse."""
        role = self.random.choice(ROLES)
        message = {'role': role, 'content': self.plain()}
        if self.chance(0.2):
            message['content'] = [self.random.choice([self.system_content, self.developer_content])()]
        for member, values in (('recipient', ['all', 'assistant', 'functions.f', '', 'a b']), ('channel', ['analysis', 'commentary', 'final', '', 'ü']), ('content_type', ['json', '<|constrain|>json', '']), ('name', ['n', 'functions.f', ''])):
            if self.chance(0.3) or (role == 'tool' and member == 'name' and self.chance(0.9)):
                message[member] = self.random.choice(values) if self.chance(0.9) else None
        return message

    def conversation(self):
        messages = []
        if self.chance(0.7):
            messages.append({'role': 'system', 'content': [self.system_content()] if self.chance(0.9) else self.plain()})
        if self.chance(0.6):
            messages.append({'role': 'developer', 'content': [self.developer_content()] if self.chance(0.9) else self.plain()})
        for _ in range(self.random.randint(0, 3)):
            messages += self.turn()
        while self.chance(0.15):
            messages.insert(self.random.randint(0, len(messages)), self.wild())
        return {'messages': messages, 'mode': self.random.choice(['completion', 'completion', 'conversation', 'training']), 'next_role': self.random.choice(['assistant'] * 3 + ROLES),
                'auto_drop_analysis': self.chance(0.7)}


class Reference:
    """openai-harmony behind the form of harmony_lines. Its native part is called, with our JSON (but for the short names of built-in tools): the Python classes in
    front of it leave out what is null."""

    def __init__(self):
        self.native = openai_harmony.load_harmony_encoding('HarmonyGptOss')._inner
        self.stops = set(self.native.stop_tokens())
        self.builtin = {f'"BUILTIN_{name.upper()}"': json.dumps(getattr(openai_harmony.ToolNamespaceConfig, name)().model_dump()) for name in ('browser', 'python')}

    def answer(self, line):
        conversation, config = json.dumps({'messages': line['messages']}), {'auto_drop_analysis': line['auto_drop_analysis']}
        for ours, whole in self.builtin.items():
            conversation = conversation.replace(ours, whole)
        try:
            if line['mode'] == 'completion':
                tokens = self.native.render_conversation_for_completion(conversation_json=conversation, next_turn_role=line['next_role'], config=config)
            else:
                render = self.native.render_conversation if line['mode'] == 'conversation' else self.native.render_conversation_for_training
                tokens = render(conversation_json=conversation, config=config)
        except RuntimeError as error:
            return {'error': str(error)}
        try:
            return {'tokens': tokens, 'messages': json.loads(self.native.parse_messages_from_completion_tokens(self.whole_messages(tokens), None, True))}
        except RuntimeError as error:
            return {'tokens': tokens, 'parse_error': str(error)}

    def whole_messages(self, tokens):
        """Without the header that a prompt ends in."""
        return tokens[:max((i + 1 for i, token in enumerate(tokens) if token in self.stops), default=0)]


def canonical(messages):
    """A message with one text has it as a string or as a list, and members that are null are as good as none."""
    for message in messages:
        content = message['content']
        if isinstance(content, str):
            message['content'] = [{'type': 'text', 'text': content}]
    return [{key: value for key, value in message.items() if value is not None} for message in messages]


def difference(ours, theirs):
    """What is not equal, or nothing."""
    for answer in (ours, theirs):
        if 'messages' in answer:
            answer['messages'] = canonical(answer['messages'])
    for part in ('error', 'tokens', 'parse_error', 'messages'):
        if ours.get(part) != theirs.get(part):
            return f'{part}:\n  ours   {json.dumps(ours.get(part), ensure_ascii=False)}\n  theirs {json.dumps(theirs.get(part), ensure_ascii=False)}'
    return ''


def compare(runner, count, seed):
    lines = [Generator(f'{seed}:{i}').conversation() for i in range(count)]
    run = subprocess.run([runner], input='\n'.join(map(json.dumps, lines)) + '\n', capture_output=True, text=True, encoding='utf-8')
    answers = run.stdout.split('\n')[:-1]
    if run.returncode != 0 or len(answers) != count:
        raise SystemExit(f'{runner} ended with {run.returncode} after {len(answers)} of {count} lines: {run.stderr}')
    reference = Reference()
    failed = refused = tokens = unread = 0
    for i, (line, answer) in enumerate(zip(lines, answers)):
        theirs = reference.answer(line)
        refused, unread, tokens = refused + ('error' in theirs), unread + ('parse_error' in theirs), tokens + len(theirs.get('tokens', []))
        if wrong := difference(json.loads(answer), theirs):
            failed += 1
            if failed <= 10:
                print(f'FAILED conversation {seed}:{i}: {wrong}\n  {json.dumps(line, ensure_ascii=False)}')
    print(f'{count} conversations of seed {seed}: {tokens} ids; {refused} refused by both alike, {unread} that neither reads back')
    return count - failed, failed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--runner', default=ROOT / 'build/release/tests/harmony_lines', help='the program harmony_lines')
    parser.add_argument('--conversations', type=int, default=1000, help='how many (default: 1000)')
    parser.add_argument('--seed', default='1', help='of the conversations (default: 1)')
    options = parser.parse_args()
    if openai_harmony is None:
        print('skipped: openai-harmony is not installed (pip install -r tools/oracles.txt)\n0 passed, 0 failed, 1 skipped')
        return 0
    passed, failed = compare(options.runner, options.conversations, options.seed)
    print(f'{passed} passed, {failed} failed, 0 skipped')
    return 1 if failed else 0


if __name__ == '__main__':
    sys.exit(main())
