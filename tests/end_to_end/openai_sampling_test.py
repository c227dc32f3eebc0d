#!/usr/bin/env python3
"""What OpenAI's client may ask of draws and ends: stop strings, logprobs, biases and penalties, in chats and completions, whole and streamed, for one choice and for two. Skips where
the package openai is not installed."""
import math

from harness import Client, main
from openai_test import ADD, FOREVER, STORY, ask, complete, openai, post, refused, shared

SEEDED = {'messages': STORY, 'reasoning_effort': 'low', 'temperature': 1, 'seed': 5, 'n': 2, 'max_tokens': 60}


def answers_of(stream):
    """{choice: (reasoning, content, finish_reason, logprobs)} of a stream."""
    told = {}
    for chunk in stream:
        for choice in chunk.choices:
            one = told.setdefault(choice.index, ['', '', None, []])
            one[0] += getattr(choice.delta, 'reasoning', None) or ''
            one[1] += choice.delta.content or ''
            one[2] = choice.finish_reason or one[2]
            one[3] += choice.logprobs.content if choice.logprobs else []
    return {index: tuple(one) for index, one in told.items()}


def answers_in(whole):
    return {choice.index: (getattr(choice.message, 'reasoning', ''), choice.message.content or '', choice.finish_reason, choice.logprobs.content if choice.logprobs else [])
            for choice in whole.choices}


def stops_of(texts):
    """Pieces of the texts that begin and end anywhere, and one that is in none."""
    return [text[at:at + length] for text in texts for at in range(1, len(text), 5) for length in (1, 2, 4)][:12] + ['never said']


def a_stop_string_ends_the_content_of_each_choice_and_is_not_in_it():
    plain = answers_in(ask(**SEEDED))
    assert len({content for _, content, _, _ in plain.values()}) == 2, 'the control: choices differ'
    ended = 0
    for stop in stops_of([content for _, content, _, _ in plain.values()]):
        whole = answers_in(ask(**SEEDED, stop=stop))
        for index, (reasoning, content, finish, _) in plain.items():
            at = content.find(stop)
            ended += at >= 0
            assert whole[index][:3] == (reasoning, content[:at] if at >= 0 else content, 'stop' if at >= 0 else finish), (stop, whole[index], plain[index])
        assert answers_of(ask(**SEEDED, stop=[stop, 'nor this'], stream=True)) == whole, stop
    assert ended > 6, ended


def a_stop_string_ends_a_completion_also_within_a_token():
    members = {'temperature': 1, 'seed': 5, 'n': 2, 'max_tokens': 40, 'extra_body': FOREVER}
    plain = [choice.text for choice in complete(**members).choices]
    ended = 0
    for stop in stops_of(plain):
        choices = complete(**members, stop=[stop]).choices
        streamed = {}
        for chunk in complete(**members, stop=[stop], stream=True):
            for choice in chunk.choices:
                text, finish = streamed.get(choice.index, ('', None))
                streamed[choice.index] = text + choice.text, choice.finish_reason or finish
        for choice, text in zip(choices, plain):
            at = text.find(stop)
            ended += at >= 0
            assert (choice.text, choice.finish_reason) == ((text[:at], 'stop') if at >= 0 else (text, 'length')), (stop, choice.text, text)
            assert streamed[choice.index] == (choice.text, choice.finish_reason), (stop, streamed)
    assert ended > 6, ended


def logprobs_are_of_the_content_and_add_up():
    members = {'logprobs': True, 'top_logprobs': 3}
    (_, content, finish, told), = answers_in(ask(**members)).values()
    assert finish == 'stop' and b''.join(bytes(token.bytes) for token in told) == content.encode(), (told, content)
    for token in told:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3 and token.top_logprobs[0].logprob == token.logprob, token  # greedy
        assert [likely.logprob for likely in token.top_logprobs] == sorted((likely.logprob for likely in token.top_logprobs), reverse=True), token
        assert sum(math.exp(likely.logprob) for likely in token.top_logprobs) <= 1 + 1e-5, token
    assert answers_of(ask(**members, stream=True))[0] == answers_in(ask(**members))[0]
    with Client(shared().endpoint) as client:
        client.submit('r', ADD, sampling={'logprobs': 3})
        client.finish()
        other = client.streams['r'].choices[0].logprobs[-len(told) - 1:-1]  # without the control token at the end
    assert len(told) == len(other) and all(abs(mine.logprob - its['logprob']) < 1e-6 for mine, its in zip(told, other)), 'as the other door tells them'
    bare = ask(logprobs=True).choices[0].logprobs
    assert [token.logprob for token in bare.content] == [token.logprob for token in told] and not any(token.top_logprobs for token in bare.content)
    assert ask().choices[0].logprobs is None
    both = answers_in(ask(**SEEDED, **members))
    assert both == answers_of(ask(**SEEDED, **members, stream=True)) and both[0][3] != both[1][3]


def logprobs_of_a_completion_stand_at_their_tokens():
    whole = complete(logprobs=2).choices[0]
    told = whole.logprobs
    assert ''.join(told.tokens) == whole.text and len(told.tokens) == len(told.token_logprobs) == len(told.top_logprobs) == len(told.text_offset), told
    for token, logprob, top, offset in zip(told.tokens, told.token_logprobs, told.top_logprobs, told.text_offset):
        assert whole.text[offset:].startswith(token) and top[token] == max(top.values()) == logprob and len(top) == 2, (token, logprob, top, offset)
    streamed = [choice.logprobs for chunk in complete(logprobs=2, stream=True) for choice in chunk.choices]
    for member in ('tokens', 'token_logprobs', 'top_logprobs', 'text_offset'):
        assert [one for part in streamed for one in getattr(part, member)] == getattr(told, member), member
    assert complete(logprobs=0).choices[0].logprobs.token_logprobs == told.token_logprobs and complete().choices[0].logprobs is None
    refused(openai.BadRequestError, lambda: complete(logprobs=2, echo=True), 'logprobs', 'unsupported_parameter')


def a_bias_forces_a_token_and_forbids_one():
    token, = post('/tokenize', {'prompt': ' the'})['tokens']
    assert complete(logit_bias={str(token): 100}, max_tokens=5, extra_body=FOREVER).choices[0].text == 5 * ' the'
    likely = answers_in(ask(logprobs=True))[0][3][0].token
    forbidden, = post('/tokenize', {'prompt': likely})['tokens']
    message = ask(logit_bias={str(forbidden): -100}).choices[0].message
    assert likely not in [one.token for one in answers_in(ask(logprobs=True, logit_bias={str(forbidden): -100}))[0][3]], message


def penalties_change_what_is_said():
    members = {'messages': STORY, 'temperature': 1, 'seed': 11, 'max_tokens': 80, 'extra_body': FOREVER}
    plain = answers_in(ask(**members))[0][:2]
    for penalty in ({'presence_penalty': 2}, {'frequency_penalty': 1.5}, {'extra_body': {**FOREVER, 'repetition_penalty': 1.3}}):
        assert answers_in(ask(**{**members, **penalty}))[0][:2] != plain, penalty
    none = {'presence_penalty': 0, 'frequency_penalty': 0, 'extra_body': {**FOREVER, 'repetition_penalty': 1}}
    assert answers_in(ask(**{**members, **none}))[0][:2] == plain


if __name__ == '__main__':
    main(a_stop_string_ends_the_content_of_each_choice_and_is_not_in_it, a_stop_string_ends_a_completion_also_within_a_token,
         logprobs_are_of_the_content_and_add_up, logprobs_of_a_completion_stand_at_their_tokens, a_bias_forces_a_token_and_forbids_one, penalties_change_what_is_said,
         missing='' if openai else 'the package openai is not installed (tools/oracles.txt)')
