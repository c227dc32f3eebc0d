#!/usr/bin/env python3
"""A chat format from a file (docs/chat-templates.md), through every API. The template here writes Harmony's own tokens, so that the tiny model answers sensibly, and what it
should write is known: the reply is held against a raw prompt of the same text."""
import json
import subprocess
import tempfile

from core_death_test import Killed, finish, pump
from gateway_test import ask as ask_http
from harness import BINARY, TINY, Client, Server, main

TEMPLATE = {
    'begin': '', 'system': '<|start|>developer<|message|># Instructions\n\n{content}<|end|>', 'user': '<|start|>user<|message|>{content}<|end|>',
    'assistant': '<|start|>assistant<|channel|>final<|message|>{content}<|end|>', 'prompt': '<|start|>assistant<|channel|>final<|message|>',
    'stop_tokens': ['<|return|>', '<|end|>'],
}
TURNS = [{'role': 'user', 'content': 'Tell me a story.'}, {'role': 'assistant', 'channel': 'final', 'content': 'Once.'}, {'role': 'user', 'content': 'Go on.'}]
WRITTEN = ('<|start|>user<|message|>Tell me a story.<|end|><|start|>assistant<|channel|>final<|message|>Once.<|end|><|start|>user<|message|>Go on.<|end|>'
           '<|start|>assistant<|channel|>final<|message|>')
LENGTH = {'completion_tokens_max': 60}


def template_file(**members):
    file = tempfile.NamedTemporaryFile('w', suffix='.json')
    json.dump({**TEMPLATE, **members}, file)
    file.flush()
    return file


def post(server, path, body):
    answer = ask_http(server.http, 'POST', path, body)
    return answer.status, answer.json


def text_of(stream):
    story = stream.choices[0].story
    assert {where for where, _, _ in story} == {'final'}, story
    return ''.join(text for _, text, _ in story)


def raw_reply(server):
    """What the model says behind WRITTEN: text without special tokens."""
    status, tokens = post(server, '/tokenize', {'prompt': WRITTEN})
    assert status == 200
    with Client(server.endpoint) as client:
        client.submit('raw', prompt_tokens=tokens['tokens'], sampling=LENGTH)
        client.finish()
        ids = client.streams['raw'].tokens
    text = post(server, '/detokenize', {'tokens': ids})[1]['prompt']
    for name in ('<|return|>', '<|end|>', '<|call|>'):
        text = text.removesuffix(name)
    assert '<|' not in text and len(text) > 20, text
    return tokens['tokens'], text


def every_api_speaks_the_template():
    with template_file() as file, Server('--chat-template', file.name, '--http', '127.0.0.1:0', ranks=1) as server:
        prompt, reply = raw_reply(server)
        assert post(server, '/tokenize', {'messages': [{k: v for k, v in turn.items() if k != 'channel'} for turn in TURNS]})[1]['tokens'] == prompt
        with Client(server.endpoint) as client:
            client.submit('r', TURNS, sampling=LENGTH)
            client.finish()
            stream = client.streams['r']
        assert stream.end['usage']['prompt_tokens'] == len(prompt) and text_of(stream) == reply, (text_of(stream), reply)
        messages = [{k: v for k, v in turn.items() if k != 'channel'} for turn in TURNS]
        status, chat = post(server, '/v1/chat/completions', {'model': 'tiny', 'messages': messages, 'max_tokens': 60, 'temperature': 0, 'logprobs': True})
        assert status == 200 and chat['choices'][0]['message']['content'] == reply, chat
        assert ''.join(bytes(token['bytes']).decode() for token in chat['choices'][0]['logprobs']['content']) == reply
        status, response = post(server, '/v1/responses', {'model': 'tiny', 'input': messages, 'max_output_tokens': 60, 'temperature': 0})
        assert status == 200 and response['output'][-1]['content'][0]['text'] == reply, response


def its_texts_end_a_reply_and_are_no_stop_string_of_the_client():
    with template_file() as file, Server('--chat-template', file.name, '--http', '127.0.0.1:0', ranks=1) as server:
        reply = raw_reply(server)[1]
    middle = reply[8:12]
    with template_file(stop=[middle]) as file, Server('--chat-template', file.name, ranks=1) as server, Client(server.endpoint) as client:
        client.submit('ends', TURNS, sampling=LENGTH)
        client.submit('own', TURNS, sampling={**LENGTH, 'stop': ['nowhere', reply[2:5]]})
        client.submit('goes on', TURNS, sampling={**LENGTH, 'ignore_stop': True})
        client.finish()
        assert text_of(client.streams['ends']) == reply[:reply.index(middle)]
        assert client.streams['ends'].end['reason'] == 'stop' and 'stop_string' not in client.streams['ends'].end
        assert text_of(client.streams['own']) == reply[:reply.index(reply[2:5])] and client.streams['own'].end['stop_string'] == 1
        assert text_of(client.streams['goes on']).startswith(reply)


def a_reply_lives_through_the_core_s_death():
    with template_file(stop=['no reply says this']) as file, Server('--chat-template', file.name, ranks=1) as server:
        with Client(server.endpoint) as client:
            client.submit('alone', TURNS, sampling={'completion_tokens_max': 150, 'ignore_stop': True})
            client.finish()
            client.submit('killed', TURNS, sampling={'completion_tokens_max': 150, 'ignore_stop': True})
            pump([client], lambda: len(client.streams['killed'].tokens) > 10, 'ten tokens')
            killed = Killed(server)
            finish([client])
            killed.prove()
            assert client.streams['killed'].outcome() == client.streams['alone'].outcome()


def what_it_has_no_form_for_is_refused_and_neighbours_go_on():
    with template_file() as file, Server('--chat-template', file.name, '--http', '127.0.0.1:0', ranks=1) as server:
        tool = {'type': 'function', 'function': {'name': 'f', 'parameters': {'type': 'object', 'properties': {}}}}
        status, error = post(server, '/v1/chat/completions', {'model': 'tiny', 'messages': TURNS[:1], 'tools': [tool]})
        assert status == 400 and 'chat template' in error['error']['message'], error
        with Client(server.endpoint) as client:
            client.submit('tool', [{'role': 'tool', 'name': 'functions.f', 'content': '1'}], sampling=LENGTH)
            client.submit('fine', TURNS, sampling=LENGTH)
            client.finish()
            assert client.streams['tool'].end['error']['field'] == 'messages[0].role'
            assert client.streams['fine'].end['type'] == 'done'


def a_wrong_file_is_refused_at_start_with_its_member():
    def refused(*arguments):
        run = subprocess.run([BINARY, *arguments], capture_output=True, text=True, timeout=60)
        assert run.returncode != 0 and run.stdout == '', run
        return run.stderr
    with template_file(stop_tokens=['<|nothing|>']) as file:
        for arguments in (('serve', str(TINY), '--chat-template', file.name, '--metrics', ''), ('generate', str(TINY), 'x', '--chat-template', file.name)):
            words = refused(*arguments)
            assert file.name in words and 'stop_tokens' in words and '--chat-template' in words, words
    assert 'no such file' in refused('generate', str(TINY), 'x', '--chat-template', '/nowhere.json').lower()


if __name__ == '__main__':
    main(every_api_speaks_the_template, its_texts_end_a_reply_and_are_no_stop_string_of_the_client, a_reply_lives_through_the_core_s_death,
         what_it_has_no_form_for_is_refused_and_neighbours_go_on, a_wrong_file_is_refused_at_start_with_its_member)
