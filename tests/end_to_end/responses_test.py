#!/usr/bin/env python3
"""The Responses API under OpenAI's own client: whole answers and the order of a stream's events, conversations that go on from a stored response, tools, what is kept for whom; and
the checks of gpt-oss's published compatibility test, over both APIs. Skips where the package openai is not installed."""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import signal
import tempfile
import threading

from harness import Server, main, wait_for
from openai_test import ADD, FOREVER, STORY, TINY, ask, api, openai, refused, shared

QUESTION = ADD[0]['content']
TOOLS_GROUPS = ('tool_call', 'tool_answer')


def respond(question=QUESTION, server=None, key='none', **members):
    return api(server, key).responses.create(model='tiny', input=question, **{'temperature': 0, **members})


def kinds(response):
    return [item.type for item in response.output]


def reasoning_of(response):
    return ''.join(part.text for item in response.output if item.type == 'reasoning' for part in item.content)


def checked(events):
    """The last event's response, if the stream is what docs/responses.md says: order, numbers, places and ids."""
    assert [event.sequence_number for event in events] == list(range(len(events))), [event.sequence_number for event in events]
    names = [event.type.removeprefix('response.') for event in events]
    assert names[:2] == ['created', 'in_progress'] and names[-1] in ('completed', 'incomplete', 'failed'), names
    response, at = events[-1].response, 2
    assert {events[0].response.id, events[1].response.id} == {response.id} and events[0].response.output == []
    for index, item in enumerate(response.output):
        assert names[at] == 'output_item.added' and events[at].output_index == index and events[at].item.id == item.id, (names[at], index)
        assert events[at].item.status == 'in_progress'
        at += 1
        stem, whole = ('function_call_arguments', item.arguments if item.type == 'function_call' else '') if item.type == 'function_call' else (
            'reasoning_text' if item.type == 'reasoning' else 'output_text', item.content[0].text)
        if item.type != 'function_call':
            assert names[at] == 'content_part.added' and events[at].part.text == '', names[at]
            at += 1
        said = ''
        while names[at] == f'{stem}.delta':
            assert (events[at].item_id, events[at].output_index, getattr(events[at], 'content_index', 0)) == (item.id, index, 0) and events[at].delta
            said += events[at].delta
            at += 1
        assert said == whole and names[at] == f'{stem}.done', (said, whole, names[at])
        assert (events[at].arguments if item.type == 'function_call' else events[at].text) == whole
        at += 1
        if item.type != 'function_call':
            assert names[at] == 'content_part.done' and events[at].part.text == whole, names[at]
            at += 1
        assert names[at] == 'output_item.done' and events[at].item.model_dump() == item.model_dump(), names[at]
        at += 1
    assert at == len(events) - 1, names[at:]
    return response


def flat(tools):
    return [{'type': 'function', **tool['function']} for tool in tools]


# --- one response ---

def a_response_has_reasoning_a_message_and_usage():
    response = respond()
    assert response.object == 'response' and response.status == 'completed' and response.model == 'tiny' and response.id.startswith('resp_'), response
    assert kinds(response) == ['reasoning', 'message'] and '42' in response.output_text, response
    assert response.output[0].content[0].type == 'reasoning_text' and response.output[0].content[0].text and response.output[0].summary == []
    assert response.output[1].phase == 'final_answer' and response.output[1].status == 'completed'
    usage = response.usage
    assert usage.total_tokens == usage.input_tokens + usage.output_tokens and 0 < usage.output_tokens_details.reasoning_tokens < usage.output_tokens, usage
    chat = ask().choices[0].message
    assert (reasoning_of(response), response.output_text) == (chat.reasoning, chat.content), 'the other API says the same'
    assert response._request_id.startswith('req_')


def a_streams_events_are_in_order_and_end_with_what_is_retrieved():
    for members in ({}, {'max_output_tokens': 7}, {'include': ['message.output_text.logprobs'], 'top_logprobs': 2}):
        response = checked(list(respond(stream=True, **members)))
        assert api().responses.retrieve(response.id).model_dump() == response.model_dump(), members
        whole = respond(**members)
        assert [item.model_dump(exclude={'id'}) for item in whole.output] == [item.model_dump(exclude={'id'}) for item in response.output]
        assert whole.usage == response.usage and whole.status == response.status


def a_stream_is_lines_of_events_without_done():
    with api().responses.with_streaming_response.create(model='tiny', input=QUESTION, temperature=0, stream=True) as answer:
        assert answer.headers['content-type'].startswith('text/event-stream') and answer.headers['x-request-id'], answer.headers
        lines = list(answer.iter_lines())
    assert all(line.startswith('event: response.') for line in lines[0::3]) and all(line.startswith('data: {"type":"response.') for line in lines[1::3]) and not any(lines[2::3])


def a_limit_of_tokens_makes_it_incomplete():
    for response in (respond(max_output_tokens=7), checked(list(respond(max_output_tokens=7, stream=True)))):
        assert response.status == 'incomplete' and response.incomplete_details.reason == 'max_output_tokens' and response.usage.output_tokens == 7, response
        assert response.output[-1].status == 'incomplete', response


def logprobs_are_told_when_included():
    part = respond(include=['message.output_text.logprobs'], top_logprobs=2).output[1].content[0]
    assert b''.join(bytes(token.bytes) for token in part.logprobs) == part.text.encode() and all(len(token.top_logprobs) == 2 for token in part.logprobs), part
    chat = ask(logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [token.logprob for token in chat] == [token.logprob for token in part.logprobs]
    events = [event for event in respond(include=['message.output_text.logprobs'], stream=True) if event.type == 'response.output_text.delta']
    assert [token.logprob for event in events for token in event.logprobs] == [token.logprob for token in part.logprobs]
    assert respond().output[1].content[0].logprobs == []


def sampling_is_as_in_chats():
    content = respond().output_text
    stop = content[2:4]
    response = respond(extra_body={'stop': [stop]})
    assert response.output_text == content[:content.find(stop)] and response.status == 'completed', response
    one, again, other = (reasoning_of(respond(STORY[0]['content'], temperature=1, max_output_tokens=40, extra_body={'seed': seed})) for seed in (7, 7, 8))
    assert one == again != other


def errors_are_in_openais_form():
    for members, param in (({'max_output_tokens': 0}, 'max_output_tokens'), ({'temperature': 3}, 'temperature'), ({'top_logprobs': 30}, 'top_logprobs'), ({'include': ['x']}, 'include[0]'),
                           ({'tools': [{'type': 'web_search'}]}, 'tools[0].type'), ({'question': []}, 'input'), ({'background': True}, 'background'),
                           ({'extra_body': {'logit_bias': {'1': 101}}}, 'logit_bias'), ({'extra_body': {'presence_penalty': 3}}, 'presence_penalty')):
        refused(openai.BadRequestError, lambda: respond(**members), param)
    refused(openai.BadRequestError, lambda: respond('word ' * 3000), code='context_length_exceeded')
    refused(openai.BadRequestError, lambda: respond(max_output_tokens=100000), 'max_output_tokens')
    refused(openai.NotFoundError, lambda: api().responses.create(model='gpt-5', input='x'), 'model', 'model_not_found')
    refused(openai.NotFoundError, lambda: respond(previous_response_id='resp_none'), 'previous_response_id')


# --- conversations ---

def a_conversation_goes_on_over_a_call_and_its_output():
    tools, question = flat(CASES[0].tools), CASES[0].question
    first = checked(list(respond(question, tools=tools, stream=True)))
    call = first.output[-1]
    assert call.type == 'function_call' and call.name == CASES[0].name and call.call_id.startswith('call_') and call.id.startswith('fc_'), first
    output = [{'type': 'function_call_output', 'call_id': call.call_id, 'output': CASES[0].result}]
    second = respond(output, tools=tools, previous_response_id=first.id)
    assert second.status == 'completed' and second.output_text and second.previous_response_id == first.id, second
    # The same conversation as items, as clients that keep nothing send it.
    sent = [{'role': 'user', 'content': question}, *(item.model_dump(exclude_none=True) for item in first.output), *output]
    assert respond(sent, tools=tools, store=False).output_text == second.output_text
    third = respond(QUESTION, tools=tools, previous_response_id=second.id)
    assert '42' in third.output_text and third.usage.input_tokens > second.usage.input_tokens, third
    lost = [{'type': 'function_call_output', 'call_id': 'call_unknown', 'output': '7'}]
    refused(openai.BadRequestError, lambda: respond(lost, tools=tools, previous_response_id=first.id), 'input[0].call_id')


def journalled(path):
    """[(ids of the prompt, ids that were drawn)] of the requests in a server's journal, in order."""
    told = {}
    for line in path.read_text().splitlines():
        fields = dict(word.split('=', 1) for word in line.split() if '=' in word)
        if line.startswith('submitted '):
            told[fields['request']] = ([int(token) for token in fields['prompt'].split(',')], [])
        for entry in fields['drawn'].split(',') if line.startswith('step_done ') and fields['drawn'] else []:
            _, request, token, _ = entry.split(':')
            told[request][1].append(int(token))
    return list(told.values())


def the_next_prompt_repeats_what_was_generated():
    """After a call all of it, reasoning too, so that the prompt goes on where the last turn stopped; of a finished turn the answer."""
    tools = flat(CASES[0].tools)
    special = {token['content']: token['id'] for token in json.loads((TINY / 'tokenizer.json').read_text())['added_tokens']}
    call, end, answered, start = (special[name] for name in ('<|call|>', '<|end|>', '<|return|>', '<|start|>'))
    with tempfile.TemporaryDirectory() as folder:
        journal = pathlib.Path(folder) / 'journal'
        with Server('--http', '127.0.0.1:0', '--journal', journal, ranks=1) as server:
            first = respond(CASES[0].question, server, tools=tools)
            output = [{'type': 'function_call_output', 'call_id': first.output[-1].call_id, 'output': CASES[0].result}]
            second = respond(output, server, tools=tools, previous_response_id=first.id)
            respond(QUESTION, server, tools=tools, previous_response_id=second.id)
        (prompt, drawn), (next_prompt, next_drawn), (last_prompt, _) = journalled(journal)
    # A step that was under way when the turn ended may have drawn one more.
    drawn, next_drawn = drawn[:drawn.index(call) + 1], next_drawn[:next_drawn.index(answered)]

    def holds(ids, wanted):
        return any(ids[at:at + len(wanted)] == wanted for at in range(len(ids)))

    def last_message(ids):
        return ids[len(ids) - ids[::-1].index(start) + 1:] if start in ids else ids

    assert len(drawn) == first.usage.output_tokens and holds(next_prompt, prompt[-20:] + drawn), (prompt, drawn, next_prompt)
    assert holds(last_prompt, last_message(next_drawn) + [end]), 'the answer'
    assert holds(last_prompt, last_message(drawn)) and not holds(last_prompt, drawn), 'and the call, without the reasoning'


def a_response_is_kept_listed_and_deleted_unless_it_shall_not_be():
    response = respond([{'role': 'developer', 'content': 'Be brief.'}, {'role': 'user', 'content': QUESTION}])
    items = api().responses.input_items.list(response.id, order='asc')
    assert [(item.role, item.content[0].text) for item in items] == [('developer', 'Be brief.'), ('user', QUESTION)], items
    newest = api().responses.input_items.list(response.id, limit=1)
    assert newest.data[0].role == 'user' and newest.has_more, newest
    assert [item.role for item in newest] == ['user', 'developer'], 'page by page'
    refused(openai.BadRequestError, lambda: api().responses.input_items.list(response.id, limit=1000), 'limit')
    api().responses.delete(response.id)
    for call in (api().responses.retrieve, api().responses.delete, api().responses.input_items.list):
        refused(openai.NotFoundError, lambda: call(response.id))
    refused(openai.NotFoundError, lambda: respond(previous_response_id=response.id), 'previous_response_id')
    unstored = respond(store=False)
    assert unstored.store is False
    refused(openai.NotFoundError, lambda: api().responses.retrieve(unstored.id))


def anothers_responses_do_not_exist_and_old_ones_make_room():
    with tempfile.TemporaryDirectory() as folder:
        keys = pathlib.Path(folder) / 'keys'
        keys.touch(mode=0o600)
        keys.write_text(''.join(f'{name} {hashlib.sha256(f"{name}-secret".encode()).hexdigest()} tenant=same\n' for name in ('ann', 'bob')))
        with Server('--http', '127.0.0.1:0', '--api-keys', keys, '--http-responses', 2, ranks=1) as server:
            ann, bob = (api(server, f'{name}-secret') for name in ('ann', 'bob'))
            ask_as = lambda key, **members: respond(server=server, key=f'{key}-secret', max_output_tokens=4, **members)
            first = ask_as('ann')
            assert ann.responses.retrieve(first.id).id == first.id
            unknown = refused(openai.NotFoundError, lambda: ann.responses.retrieve('resp_0'))
            for call in (bob.responses.retrieve, bob.responses.delete, bob.responses.input_items.list):
                error = refused(openai.NotFoundError, lambda: call(first.id))
                assert error.body['message'].replace(first.id, 'resp_0') == unknown.body['message'], 'in the same words'
            refused(openai.NotFoundError, lambda: ask_as('bob', previous_response_id=first.id), 'previous_response_id')
            refused(openai.NotFoundError, lambda: ask_as('bob', question=[{'type': 'item_reference', 'id': first.output[0].id}]), 'input[0].id')
            refused(openai.AuthenticationError, lambda: api(server, 'wrong').responses.retrieve(first.id))
            second, third = ask_as('ann'), ask_as('ann')
            refused(openai.NotFoundError, lambda: ann.responses.retrieve(first.id))
            assert [ann.responses.retrieve(one.id).id for one in (second, third)] == [second.id, third.id]


def a_client_that_leaves_cancels_and_nothing_is_kept():
    with Server('--http', '127.0.0.1:0', ranks=1) as server:
        stream = respond(STORY[0]['content'], server, stream=True, max_output_tokens=1500, extra_body=FOREVER)
        events = iter(stream)
        response = next(events).response
        for _ in range(5):
            next(events)
        wait_for('the request runs', lambda: server.metric('althing_requests_running') == 1)
        stream.close()
        wait_for('the request is cancelled', lambda: server.metric('althing_requests_running') == 0)
        refused(openai.NotFoundError, lambda: api(server).responses.retrieve(response.id))


def a_stream_lives_through_the_death_of_the_core():
    members = {'temperature': 1, 'max_output_tokens': 250, 'extra_body': {**FOREVER, 'seed': 11}}

    def hear(server, began=None):
        events = []
        for event in respond(STORY[0]['content'], server, stream=True, **members):
            events.append(event)
            if began and len(events) > 20:
                began.set()
        return checked(events)

    with Server('--http', '127.0.0.1:0', ranks=2) as server:
        undisturbed = hear(server)
        began, told = threading.Event(), []
        reader = threading.Thread(target=lambda: told.append(hear(server, began)))
        reader.start()
        wait_for('the stream has begun', began.is_set, 20)
        victim = server.children()['core']
        os.kill(victim, signal.SIGKILL)
        reader.join(60)
        wait_for('another core', lambda: server.children().get('core', victim) != victim)
        assert told and [item.model_dump(exclude={'id', 'call_id'}) for item in told[0].output] == [item.model_dump(exclude={'id', 'call_id'}) for item in undisturbed.output], (told, undisturbed)
        assert api(server).responses.retrieve(told[0].id).model_dump() == told[0].model_dump(), 'and is kept'
        assert '42' in respond(server=server).output_text


# --- gpt-oss's compatibility test ---

class Case:
    """A question that the tiny model was taught to answer by a call: what it shall call, with what, and what it is told."""

    def __init__(self, conversation):
        messages = conversation['messages']
        content = [part for message in messages for part in message['content'] if isinstance(part, dict) and part.get('type') == 'developer_content']
        self.tools = [{'type': 'function', 'function': tool} for tool in content[0]['tools']['functions']['tools']]
        last = max(index for index, message in enumerate(messages) if message['role'] == 'user')
        text = messages[last]['content']
        self.question = text if isinstance(text, str) else text[0]['text']
        calls = [message['recipient'] for message in messages[last:] if message['role'] == 'assistant' and (message.get('recipient') or '').startswith('functions.')]
        self.name = (calls[0] if calls else conversation['completion_text'].split('to=', 1)[1].split(' ', 1)[0]).removeprefix('functions.')
        results = [message['content'] for message in messages[last:] if message['role'] == 'tool']
        self.result = '{"value": 7}' if not results else results[0] if isinstance(results[0], str) else results[0][0]['text']

    def arguments_fit(self, name, arguments):
        """JSON, with all that the function requires and nothing that it does not know."""
        schema = next(tool['function'].get('parameters') or {} for tool in self.tools if tool['function']['name'] == name)
        given = json.loads(arguments)
        return isinstance(given, dict) and set(schema.get('required', [])) <= set(given) <= set(schema.get('properties', {}))


CASES = [case for case in map(Case, (one for one in map(json.loads, (TINY / 'conversations.jsonl').open(encoding='utf-8')) if one['group'] in TOOLS_GROUPS))][:30]


def chat_trip(case, stream):
    """(reasoning, name, arguments, finish_reason, the answer after the result) over chat completions."""
    members = {'tools': case.tools, 'reasoning_effort': 'high', 'stream': stream}
    messages = [{'role': 'user', 'content': case.question}]

    def turn():
        answer = ask(messages, **members)
        if not stream:
            choice = answer.choices[0]
            calls = [(call.id, call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
            return getattr(choice.message, 'reasoning', None) or '', choice.message.content or '', calls, choice.finish_reason
        reasoning, content, calls, finish, ids = '', '', {}, None, set()
        for chunk in answer:
            ids.add(chunk.id)
            for choice in chunk.choices:
                reasoning += getattr(choice.delta, 'reasoning', None) or ''
                content += choice.delta.content or ''
                for piece in choice.delta.tool_calls or []:
                    call = calls.setdefault(piece.index, [piece.id, piece.function.name, ''])
                    call[2] += piece.function.arguments or ''
                finish = choice.finish_reason or finish
        assert len(ids) == 1, ids
        return reasoning, content, [tuple(call) for call in calls.values()], finish

    reasoning, _, calls, finish = turn()
    if not calls:
        return reasoning, None, None, finish, None
    identity, name, arguments = calls[0]
    messages += [{'role': 'assistant', 'reasoning': reasoning, 'tool_calls': [{'id': identity, 'type': 'function', 'function': {'name': name, 'arguments': arguments}}]},
                 {'role': 'tool', 'tool_call_id': identity, 'content': case.result}]
    return reasoning, name, arguments, finish, turn()[1]


def responses_trip(case, stream):
    """The same over the Responses API; a call must be a completed item."""
    members = {'tools': flat(case.tools), 'reasoning': {'effort': 'high'}, 'stream': stream}
    answer = respond(case.question, **members)
    first = checked(list(answer)) if stream else answer
    reasoning = reasoning_of(first)
    calls = [item for item in first.output if item.type == 'function_call']
    if not calls:
        return reasoning, None, None, 'stop', None
    answer = respond([{'type': 'function_call_output', 'call_id': calls[0].call_id, 'output': case.result}], previous_response_id=first.id, **members)
    second = checked(list(answer)) if stream else answer
    return reasoning, calls[0].name, calls[0].arguments, 'tool_calls' if calls[0].status == 'completed' else 'stop', second.output_text


def gpt_oss_compatibility():
    """The published test's 30 cases over each API, whole and streamed. What the server owes must hold in all of them; what the model decides is counted."""
    shared()
    for api_name, trip in (('chat', chat_trip), ('responses', responses_trip)):
        for stream in (False, True):
            with concurrent.futures.ThreadPoolExecutor(6) as pool:
                told = list(pool.map(lambda case: trip(case, stream), CASES))
            reasoned = sum(bool(reasoning) for reasoning, *_ in told)
            called = [(case, name, arguments, finish, answer) for case, (_, name, arguments, finish, answer) in zip(CASES, told) if name]
            right = sum(name == case.name and case.arguments_fit(name, arguments) for case, name, arguments, _, _ in called)
            ended = sum(finish == 'tool_calls' for _, _, _, finish, _ in called)
            answered = sum(bool(answer) for *_, answer in called)
            print(f'  {api_name}{" streamed" if stream else ""}: {len(told)} cases, {reasoned} with reasoning, {len(called)} called, {right} rightly, {answered} answered after the result', flush=True)
            assert len(told) == reasoned == 30 and ended == len(called), 'every case has reasoning, every call its end'
            assert right >= 27 and answered >= len(called) - 1, [(case.question, name, arguments, answer) for case, name, arguments, _, answer in called]


if __name__ == '__main__':
    main(a_response_has_reasoning_a_message_and_usage, a_streams_events_are_in_order_and_end_with_what_is_retrieved, a_stream_is_lines_of_events_without_done, a_limit_of_tokens_makes_it_incomplete,
         logprobs_are_told_when_included, sampling_is_as_in_chats, errors_are_in_openais_form, a_conversation_goes_on_over_a_call_and_its_output,
         the_next_prompt_repeats_what_was_generated,
         a_response_is_kept_listed_and_deleted_unless_it_shall_not_be, anothers_responses_do_not_exist_and_old_ones_make_room, a_client_that_leaves_cancels_and_nothing_is_kept,
         a_stream_lives_through_the_death_of_the_core, gpt_oss_compatibility, missing='' if openai else 'the package openai is not installed (tools/oracles.txt)')
