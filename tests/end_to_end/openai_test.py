#!/usr/bin/env python3
"""The OpenAI-compatible API under OpenAI's own client: chats, streams, tools, choices, completions, tokens and models; errors by class; streams through deaths of the core, of a
rank and of the gateway itself. Skips where the package openai is not installed. Keys, limits, drains and other people's sockets are gateway_test.py's."""
import asyncio
import atexit
import functools
import json
import os
import pathlib
import signal
import threading
import typing

from harness import TINY, Client, Server, alive, main, wait_for

try:
    import openai
except ImportError:
    openai = None

ADD = [{'role': 'user', 'content': 'What is 12 + 30?'}]
STORY = [{'role': 'user', 'content': 'Tell me a story.'}]
FOREVER = {'ignore_eos': True}
CALL = next(json.loads(line) for line in (TINY / 'conversations.jsonl').open(encoding='utf-8') if '"group": "tool_call"' in line)


@functools.cache
def shared():
    """One server for all cases that break nothing."""
    server = Server('--http', '127.0.0.1:0', ranks=1)
    server.__enter__()
    atexit.register(server.__exit__, None, None, None)
    return server


def api(server=None, key='none', **options):
    return openai.OpenAI(base_url=f'http://{(server or shared()).http}/v1', api_key=key, max_retries=0, timeout=60, **options)


def ask(messages=ADD, server=None, **members):
    return api(server).chat.completions.create(model='tiny', messages=messages, **{'temperature': 0, **members})


def hear(stream):
    """(reasoning, content, chunks) of a stream of one choice."""
    reasoning, content, chunks = '', '', []
    for chunk in stream:
        chunks.append(chunk)
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, 'reasoning', None) or ''
            content += choice.delta.content or ''
    return reasoning, content, chunks


def refused(kind, call, param=None, code=None):
    try:
        call()
    except kind as error:
        assert type(error) is kind, error
        assert error.body['message'] and error.body['type'], error.body
        assert param is None or error.body['param'] == param, error.body
        assert code is None or error.body['code'] == code, error.body
        assert error.response.headers['x-request-id'], error.response.headers
        return error
    raise AssertionError(f'no {kind.__name__}')


def functions():
    content = next(part for message in CALL['messages'] for part in message['content'] if isinstance(part, dict) and part.get('type') == 'developer_content')
    return [{'type': 'function', 'function': tool} for tool in content['tools']['functions']['tools']], [m for m in CALL['messages'] if m['role'] == 'user']


# --- chats ---

def an_answer_has_content_reasoning_usage_and_an_end():
    whole = ask()
    assert whole.object == 'chat.completion' and whole.id.startswith('chatcmpl-') and whole.model == 'tiny', whole
    message = whole.choices[0].message
    assert '42' in message.content and message.role == 'assistant' and message.tool_calls is None, message
    assert isinstance(message.reasoning, str) and message.reasoning, 'gpt-oss\'s compatibility test wants it'
    assert whole.choices[0].finish_reason == 'stop', whole


def usage_adds_up_and_tells_reasoning():
    usage = ask().usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage
    assert 0 < usage.completion_tokens_details.reasoning_tokens < usage.completion_tokens, usage
    assert 0 < ask().usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens, 'the same was asked before'


def a_client_of_the_other_door_gets_the_same_text():
    with Client(shared().endpoint) as client:
        client.submit('r', [{'role': 'user', 'content': ADD[0]['content']}])
        client.finish()
        story = client.streams['r'].story
    message = ask().choices[0].message
    assert [message.reasoning, message.content] == [text for _, text, _ in story], story


def a_stream_adds_up_to_the_whole_answer():
    reasoning, content, _ = hear(ask(stream=True))
    message = ask().choices[0].message
    assert (reasoning, content) == (message.reasoning, message.content)


def chunks_keep_one_id_and_their_order():
    _, _, chunks = hear(ask(stream=True, stream_options={'include_usage': True}))
    assert len({(chunk.id, chunk.created, chunk.model, chunk.object) for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == 'assistant' and chunks[0].choices[0].delta.content == '', chunks[0]
    assert all(choice.delta.role is None for chunk in chunks[1:] for choice in chunk.choices)
    kinds = ['reasoning' if getattr(chunk.choices[0].delta, 'reasoning', None) else 'content' for chunk in chunks[1:-2]]
    assert kinds == sorted(kinds, reverse=True), 'reasoning comes before content'
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 2) + ['stop']
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])


def usage_of_a_stream_is_that_of_the_whole_and_only_on_request():
    _, _, chunks = hear(ask(stream=True, stream_options={'include_usage': True}))
    assert chunks[-1].usage == ask().usage
    _, _, plain = hear(ask(stream=True))
    assert all(chunk.usage is None and chunk.choices for chunk in plain)


def the_bytes_of_a_stream_are_events_and_a_last_one():
    with api().chat.completions.with_streaming_response.create(model='tiny', messages=ADD, temperature=0, stream=True) as answer:
        assert answer.headers['content-type'].startswith('text/event-stream'), answer.headers
        lines = list(answer.iter_lines())
    assert all(line.startswith('data: {') for line in lines[:-2:2]) and not any(lines[1::2]), lines[:4]
    assert lines[-2] == 'data: [DONE]', lines[-3:]


def reasoning_can_be_asked_for_and_left_out():
    high, low = (ask(reasoning_effort=effort).usage.prompt_tokens for effort in ('high', 'low'))
    assert high == low, 'one word each'
    assert ask(extra_body={'reasoning': {'effort': 'high'}}).choices[0].message.reasoning == ask(reasoning_effort='high').choices[0].message.reasoning
    for left_out in ({'include_reasoning': False}, {'reasoning': {'exclude': True}}):
        message = ask(extra_body=left_out).choices[0].message
        assert getattr(message, 'reasoning', None) is None and message.content, message
        assert hear(ask(stream=True, extra_body=left_out))[0] == ''
    refused(openai.BadRequestError, lambda: ask(reasoning_effort='none'), 'reasoning_effort', 'unsupported_parameter')


def history_may_hold_reasoning_under_both_names_and_parts():
    past = ask().choices[0].message
    for name in ('reasoning', 'reasoning_content'):
        messages = [*ADD, {'role': 'assistant', 'content': past.content, name: past.reasoning}, {'role': 'user', 'content': [{'type': 'text', 'text': 'And what is '}, {'type': 'text', 'text': '5 + 5?'}]}]
        assert '10' in ask(messages).choices[0].message.content, name
    image = [{'role': 'user', 'content': [{'type': 'image_url', 'image_url': {'url': 'http://x/y.png'}}]}]
    refused(openai.BadRequestError, lambda: ask(image), 'messages[0].content[0]')


def instructions_come_from_system_and_developer_alike():
    texts = [ask([{'role': role, 'content': 'Begin every answer with OK.'}, *ADD]) for role in ('system', 'developer')]
    assert texts[0].choices[0].message.content == texts[1].choices[0].message.content
    assert texts[0].usage.prompt_tokens > ask().usage.prompt_tokens


def nulls_and_unknown_members_are_accepted():
    nulls = ('max_tokens', 'max_completion_tokens', 'top_p', 'n', 'seed', 'stop', 'presence_penalty', 'frequency_penalty', 'logit_bias', 'logprobs', 'top_logprobs', 'tools',
             'tool_choice', 'parallel_tool_calls', 'response_format', 'reasoning_effort', 'user', 'metadata', 'store', 'stream_options', 'reasoning')
    body = {**dict.fromkeys(nulls), 'service_tier': 'auto', 'from_the_future': {'a': [1]}}
    assert ask(extra_body=body).choices[0].message.content == ask().choices[0].message.content
    ask(user='somebody', metadata={'a': 'b'}, store=True, parallel_tool_calls=False, response_format={'type': 'text'}, presence_penalty=0, logprobs=False)


SUM = {'type': 'object', 'properties': {'kind': {'enum': ['sum', 'other']}, 'value': {'type': 'integer', 'minimum': 0, 'maximum': 999}}, 'required': ['kind', 'value'],
       'additionalProperties': False}


def a_response_format_holds_the_answer_and_not_the_reasoning():
    wanted = {'type': 'json_schema', 'json_schema': {'name': 'answer', 'schema': SUM, 'strict': True}}
    for stream in (False, True):
        answer = ask(response_format=wanted, stream=stream, temperature=1, seed=4, n=1)
        reasoning, content = hear(answer)[:2] if stream else (answer.choices[0].message.reasoning, answer.choices[0].message.content)
        said = json.loads(content)
        assert list(said) == ['kind', 'value'] and said['kind'] in ('sum', 'other') and 0 <= said['value'] <= 999, content
        assert reasoning and '{' not in reasoning, reasoning
    # A hot model may go on with any object for long.
    choice = ask(response_format={'type': 'json_object'}, max_completion_tokens=150, temperature=1, seed=5).choices[0]
    assert choice.message.content.startswith('{') and (choice.finish_reason == 'length' or isinstance(json.loads(choice.message.content), dict)), choice
    # What is not asked for is not changed.
    assert ask(response_format={'type': 'text'}).choices[0].message.content == ask().choices[0].message.content


def a_pydantic_model_can_be_parsed():
    pydantic = __import__('pydantic')
    word = typing.Annotated[str, pydantic.Field(max_length=8)]
    answer_model = pydantic.create_model('Answer', value=(int, ...), words=(list[word], pydantic.Field(max_length=2)), note=(word | None, None), kind=(typing.Literal['a', 'b'], 'a'))
    for seed in range(4):
        parsed = api().chat.completions.parse(model='tiny', messages=ADD, response_format=answer_model, temperature=1, seed=seed, max_completion_tokens=600)
        assert isinstance(parsed.choices[0].message.parsed, answer_model), parsed


def responses_are_held_too():
    answer = api().responses.create(model='tiny', input=ADD[0]['content'], temperature=1, text={'format': {'type': 'json_schema', 'name': 'answer', 'schema': SUM, 'strict': True}})
    assert set(json.loads(answer.output_text)) == {'kind', 'value'} and answer.text.format.name == 'answer', answer
    error = refused(openai.BadRequestError, lambda: api().responses.create(model='tiny', input='x', text={'format': {'type': 'json_schema', 'name': 'a', 'schema': {'not': {}}}}))
    assert error.body['param'] == 'text.format.schema', error.body


def what_is_not_built_is_refused_by_name():
    schema = {'type': 'json_schema', 'json_schema': {'name': 's', 'schema': {'properties': {'a': {'uniqueItems': True}}}}}
    for param, value in (('response_format', schema), ('response_format', {'type': 'grammar'}), ('modalities', ['audio']), ('tool_choice', 'required')):
        error = refused(openai.BadRequestError, lambda: ask(**{param: value}), None, 'unsupported_parameter')
        assert error.body['param'].startswith(param) and (value is not schema or 'uniqueItems' in error.body['message'] and '#/properties/a' in error.body['message']), error.body
        assert error.status_code == 400 and error.body['type'] == 'invalid_request_error', error.body


def values_out_of_range_are_refused_by_name():
    for param, value in (('temperature', 3), ('temperature', -1), ('top_p', 0), ('top_p', 1.5), ('n', 0), ('n', 1000), ('max_completion_tokens', 0), ('seed', 1.5), ('temperature', 'hot'),
                         ('presence_penalty', 2.5), ('frequency_penalty', -3), ('stop', ['']), ('stop', 17 * ['x']), ('logit_bias', {'1': 101}), ('logit_bias', {'x': 1}), ('logit_bias', {'99999': 1}),
                         ('top_logprobs', 3), ('logprobs', 'yes'), ('messages', []), ('messages', [{'role': 'robot', 'content': 'x'}])):
        error = refused(openai.BadRequestError, lambda: ask(**{param: value}) if param != 'messages' else ask(value))
        assert error.body['param'].startswith(param), (param, error.body)


def a_prompt_that_does_not_fit_is_refused_with_both_numbers():
    error = refused(openai.BadRequestError, lambda: ask([{'role': 'user', 'content': 'word ' * 3000}]), code='context_length_exceeded')
    assert '2048' in error.body['message'], error.body


def another_model_and_another_path_are_not_found():
    refused(openai.NotFoundError, lambda: api().chat.completions.create(model='gpt-5', messages=ADD), 'model', 'model_not_found')
    refused(openai.NotFoundError, lambda: api().embeddings.create(model='tiny', input='x'))


def a_limit_of_tokens_ends_with_length():
    for name in ('max_tokens', 'max_completion_tokens'):
        whole = ask(**{name: 5})
        assert whole.choices[0].finish_reason == 'length' and whole.usage.completion_tokens == 5, whole
    assert ask(max_tokens=3, max_completion_tokens=5).usage.completion_tokens == 5


def a_seed_gives_the_same_text_again():
    one, again, other = (ask(STORY, temperature=1, seed=seed, max_tokens=40).choices[0].message for seed in (7, 7, 8))
    assert (one.reasoning, one.content) == (again.reasoning, again.content)
    assert (one.reasoning, one.content) != (other.reasoning, other.content)
    assert ask(temperature=1, seed=-5, max_tokens=5).usage.completion_tokens == 5


def choices_are_as_many_as_asked_for_and_each_has_its_end():
    whole = ask(STORY, n=3, temperature=1, seed=3, max_tokens=30)
    assert [choice.index for choice in whole.choices] == [0, 1, 2] and whole.usage.completion_tokens == 90, whole
    assert whole.choices[0].message.reasoning == ask(STORY, temperature=1, seed=3, max_tokens=30).choices[0].message.reasoning
    texts, ends, roles = {}, {}, {}
    for chunk in ask(STORY, n=3, temperature=1, seed=3, max_tokens=30, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, '') + (getattr(choice.delta, 'reasoning', None) or '')
            roles[choice.index] = roles.get(choice.index, 0) + (choice.delta.role is not None)
            ends.setdefault(choice.index, []).extend([choice.finish_reason] if choice.finish_reason else [])
    assert texts == {choice.index: choice.message.reasoning or '' for choice in whole.choices}
    assert ends == {i: ['length'] for i in range(3)} and roles == {0: 1, 1: 1, 2: 1}, (ends, roles)


# --- tools ---

def a_tool_is_called_and_its_result_answered():
    tools, messages = functions()
    called = ask(messages, tools=tools)
    choice = called.choices[0]
    assert choice.finish_reason == 'tool_calls' and choice.message.content is None, choice
    call = choice.message.tool_calls[0]
    assert call.type == 'function' and call.function.name in {tool['function']['name'] for tool in tools} and isinstance(json.loads(call.function.arguments), dict), call
    history = [*messages, choice.message.model_dump(exclude_none=True), {'role': 'tool', 'tool_call_id': call.id, 'content': '{"result": 7}'}]
    answered = ask(history, tools=tools)
    assert answered.choices[0].finish_reason == 'stop' and answered.choices[0].message.content, answered


def a_streamed_call_comes_once_with_one_id_and_all_its_arguments():
    tools, messages = functions()
    wanted = ask(messages, tools=tools).choices[0].message.tool_calls[0].function
    _, content, chunks = hear(ask(messages, tools=tools, stream=True))
    pieces = [piece for chunk in chunks for choice in chunk.choices for piece in choice.delta.tool_calls or []]
    assert [piece.id is not None for piece in pieces] == [True] + [False] * (len(pieces) - 1) and {piece.index for piece in pieces} == {0}, pieces
    assert [piece.function.name for piece in pieces] == [wanted.name] + [None] * (len(pieces) - 1)
    assert ''.join(piece.function.arguments for piece in pieces) == wanted.arguments and content == ''
    assert chunks[-1].choices[0].finish_reason == 'tool_calls'


def calls_are_not_made_when_they_are_not_wanted_and_not_promised_when_forced():
    tools, messages = functions()
    none = ask(messages, tools=tools, tool_choice='none', max_tokens=60)
    assert none.choices[0].message.tool_calls is None and none.usage.prompt_tokens < ask(messages, tools=tools).usage.prompt_tokens
    name = tools[0]['function']['name']
    for forced in ('required', {'type': 'function', 'function': {'name': name}}):
        refused(openai.BadRequestError, lambda: ask(messages, tools=tools, tool_choice=forced), 'tool_choice', 'unsupported_parameter')
    lost = [*messages, {'role': 'tool', 'tool_call_id': 'call_unknown', 'content': '7'}]
    refused(openai.BadRequestError, lambda: ask(lost, tools=tools), 'messages[1].tool_call_id')


def tools_without_description_or_parameters_are_fine():
    bare = [{'type': 'function', 'function': {'name': 'now'}}, {'type': 'function', 'function': {'name': 'then', 'description': None, 'parameters': None, 'strict': True}}]
    assert ask(tools=bare).choices[0].message.content
    refused(openai.BadRequestError, lambda: ask(tools=[{'type': 'function', 'function': {'name': 'a b'}}]))


# --- completions, tokens, models ---

PROMPT = '<|start|>user<|message|>What is 2 + 2?<|end|><|start|>assistant<|channel|>final<|message|>'


def complete(prompt=PROMPT, **members):
    return api().completions.create(model='tiny', prompt=prompt, **{'temperature': 0, **members})


def a_raw_prompt_is_continued_as_text_or_ids():
    whole = complete()
    assert whole.object == 'text_completion' and '4' in whole.choices[0].text and '<|' not in whole.choices[0].text, whole
    assert whole.choices[0].finish_reason == 'stop' and whole.usage.completion_tokens_details.reasoning_tokens == 0
    ids = post('/tokenize', {'prompt': PROMPT})['tokens']
    for prompt in (ids, [PROMPT], [ids]):
        assert complete(prompt).choices[0].text == whole.choices[0].text
    assert complete(extra_body={'skip_special_tokens': False}).choices[0].text.startswith(whole.choices[0].text)
    both = complete([PROMPT, ids])
    assert [choice.index for choice in both.choices] == [0, 1] and {choice.text for choice in both.choices} == {whole.choices[0].text}
    assert both.usage.prompt_tokens == 2 * whole.usage.prompt_tokens
    refused(openai.BadRequestError, lambda: complete(['a', '']), 'prompt[1]')


def a_streamed_completion_adds_up_and_echo_comes_first():
    text = complete().choices[0].text
    chunks = list(complete(stream=True, stream_options={'include_usage': True}))
    assert ''.join(choice.text for chunk in chunks for choice in chunk.choices) == text
    assert chunks[-2].choices[0].finish_reason == 'stop' and chunks[-1].usage == complete().usage
    assert complete(echo=True).choices[0].text == PROMPT + text
    assert ''.join(choice.text for chunk in complete(echo=True, stream=True) for choice in chunk.choices) == PROMPT + text
    assert [choice.finish_reason for choice in complete(n=2, max_tokens=1, temperature=1, seed=1).choices] == ['length', 'length']
    assert complete(extra_body=FOREVER).usage.completion_tokens == 16, 'the default of this route'


def post(path, body):
    return api(default_headers={'content-type': 'application/json'}).with_options(base_url=f'http://{shared().http}').post(path, body=body, cast_to=object)


def tokens_go_there_and_back_and_chats_are_counted_as_they_are_charged():
    for text in ('hello world', 'naïve 東京 👍\n\n  x', '<|start|>user<|message|>hi<|end|>', ''):
        made = post('/tokenize', {'prompt': text})
        assert made['count'] == len(made['tokens']) and made['max_model_len'] == 2048, made
        assert post('/detokenize', {'tokens': made['tokens']})['prompt'] == text
    assert post('/tokenize', {'messages': ADD})['count'] == ask().usage.prompt_tokens
    refused(openai.BadRequestError, lambda: post('/detokenize', {'tokens': [1, 10**9]}), 'tokens[1]')


def models_are_listed_and_retrieved():
    models = list(api().models.list())
    assert [model.id for model in models] == ['tiny'] and models[0].object == 'model' and models[0].owned_by == 'althing', models
    assert api().models.retrieve('tiny').id == 'tiny'
    refused(openai.NotFoundError, lambda: api().models.retrieve('another'))


def a_request_id_of_the_clients_own_comes_back():
    raw = api(default_headers={'x-request-id': 'mine-1'}).chat.completions.with_raw_response.create(model='tiny', messages=ADD, max_tokens=1)
    assert raw.headers['x-request-id'] == 'mine-1', raw.headers
    assert ask(max_tokens=1)._request_id.startswith('req_')


def many_at_once_get_each_their_own():
    async def all_of_them():
        client = openai.AsyncOpenAI(base_url=f'http://{shared().http}/v1', api_key='none', max_retries=0, timeout=120)
        sums = [(a, b) for a in range(10, 14) for b in range(20, 24)]
        answers = await asyncio.gather(*(client.chat.completions.create(model='tiny', temperature=0, messages=[{'role': 'user', 'content': f'What is {a} + {b}?'}]) for a, b in sums))
        return sums, [answer.choices[0].message.content for answer in answers]

    sums, answers = asyncio.run(all_of_them())
    wrong = [(pair, answer) for pair, answer in zip(sums, answers) if str(sum(pair)) not in answer]
    assert len(wrong) <= 1, wrong  # the model is small


# --- deaths ---

def long_story(server, members, began=None):
    """The text of a long stream; `began` is set when some of it has come."""
    text = ''
    for chunk in ask(STORY, server, stream=True, **members):
        for choice in chunk.choices:
            text += (getattr(choice.delta, 'reasoning', None) or '') + (choice.delta.content or '')
            if began and len(text) > 60:
                began.set()
    return text


def through_a_death(who):
    members = {'temperature': 1, 'seed': 11, 'max_tokens': 250, 'extra_body': FOREVER}
    with Server('--http', '127.0.0.1:0', ranks=2) as server:
        undisturbed = long_story(server, members)
        began, told = threading.Event(), []
        reader = threading.Thread(target=lambda: told.append(long_story(server, members, began)))
        reader.start()
        wait_for('the stream has begun', began.is_set, 20)
        victim = server.children()[who]
        os.kill(victim, signal.SIGKILL)
        reader.join(60)
        assert told == [undisturbed], (told, undisturbed)
        wait_for(f'another {who}', lambda: server.children().get(who, victim) != victim)
        assert not alive(victim)
        assert ask(server=server).choices[0].message.content


def a_stream_lives_through_the_death_of_the_core():
    through_a_death('core')


def a_stream_lives_through_the_death_of_a_rank():
    through_a_death('rank1')


def a_dead_gateway_is_back_where_it_was():
    with Server('--http', '127.0.0.1:0', ranks=1) as server:
        for _ in range(2):
            victim = server.children()['gateway']
            os.kill(victim, signal.SIGKILL)
            wait_for('another gateway', lambda: server.children().get('gateway', victim) != victim)

            def answers():
                try:
                    return ask(server=server).choices[0].message.content
                except (openai.APIConnectionError, openai.InternalServerError):
                    return None

            assert '42' in wait_for('it answers at the same address', answers)
        assert server.ready(), 'the server did not notice'


if __name__ == '__main__':
    main(an_answer_has_content_reasoning_usage_and_an_end, usage_adds_up_and_tells_reasoning, a_client_of_the_other_door_gets_the_same_text, a_stream_adds_up_to_the_whole_answer,
         chunks_keep_one_id_and_their_order, usage_of_a_stream_is_that_of_the_whole_and_only_on_request, the_bytes_of_a_stream_are_events_and_a_last_one, reasoning_can_be_asked_for_and_left_out,
         history_may_hold_reasoning_under_both_names_and_parts, instructions_come_from_system_and_developer_alike, nulls_and_unknown_members_are_accepted, a_response_format_holds_the_answer_and_not_the_reasoning,
         a_pydantic_model_can_be_parsed, responses_are_held_too, what_is_not_built_is_refused_by_name,
         values_out_of_range_are_refused_by_name, a_prompt_that_does_not_fit_is_refused_with_both_numbers, another_model_and_another_path_are_not_found, a_limit_of_tokens_ends_with_length,
         a_seed_gives_the_same_text_again, choices_are_as_many_as_asked_for_and_each_has_its_end, a_tool_is_called_and_its_result_answered,
         a_streamed_call_comes_once_with_one_id_and_all_its_arguments, calls_are_not_made_when_they_are_not_wanted_and_not_promised_when_forced, tools_without_description_or_parameters_are_fine,
         a_raw_prompt_is_continued_as_text_or_ids, a_streamed_completion_adds_up_and_echo_comes_first, tokens_go_there_and_back_and_chats_are_counted_as_they_are_charged,
         models_are_listed_and_retrieved, a_request_id_of_the_clients_own_comes_back, many_at_once_get_each_their_own, a_stream_lives_through_the_death_of_the_core,
         a_stream_lives_through_the_death_of_a_rank, a_dead_gateway_is_back_where_it_was, missing='' if openai else 'the package openai is not installed (tools/oracles.txt)')
