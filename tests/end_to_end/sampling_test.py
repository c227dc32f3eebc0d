#!/usr/bin/env python3
"""What a client may ask of draws, from the wire to the token: biases, penalties, logprobs and the ends that text and tokens make. What is told is held against what other
requests tell of the same logits, and must be the same after a dead rank, a dead core and preemptions."""
import json
import math
import subprocess

from core_death_test import finish, outcomes, pump, split_run
from harness import BINARY, PATIENCE, TINY, Client, Server, conversations, main, wait_for

CASES = conversations(40)
STORY = [{'role': 'user', 'content': 'Tell me a story.'}]
PROMPT = CASES[0]['completion_ids'][:24]
EVERYTHING = {'temperature': 1.1, 'top_p': 0.95, 'completion_tokens_max': 120, 'ignore_stop': True, 'repetition_penalty': 1.15, 'presence_penalty': 0.3,
              'frequency_penalty': 0.2, 'logit_bias': {'17': 1.5, '300': -3}, 'logprobs': 4}
TOLERANCE = 1e-4  # of a difference of two float logprobs


def ask_all(server, requests):
    """{key: stream} of (key, prompt tokens or messages, sampling)."""
    with Client(server.endpoint) as client:
        for key, prompt, sampling in requests:
            if isinstance(prompt[0], dict):
                client.submit(key, prompt, sampling=sampling)
            else:
                client.submit(key, prompt_tokens=prompt, sampling=sampling)
        client.finish()
        return client.streams


def one_draw(server, prompt, **sampling):
    """The logprobs of one greedy token: {token: logprob} of the 20 most likely, and the token."""
    stream = ask_all(server, [('r', prompt, {'completion_tokens_max': 1, 'ignore_stop': True, 'logprobs': 20, **sampling})])['r']
    assert stream.end['type'] == 'done', stream.end
    (told,) = stream.choices[0].logprobs
    return {token: logprob for token, logprob in told['top']}, stream.tokens[0]


def final_text(stream, choice=0):
    return ''.join(text for where, text, _ in stream.choices[choice].story if where == 'final')


def a_bias_forces_a_token_and_forbids_one():
    with Server() as server:
        plain, likely = one_draw(server, PROMPT)
        ask = {'completion_tokens_max': 6, 'ignore_stop': True, 'temperature': 1.0, 'seed': 3}
        streams = ask_all(server, [('forced', PROMPT, {**ask, 'logit_bias': {'1234': 100}}), ('free', PROMPT, ask)])
        assert streams['forced'].tokens == 6 * [1234], streams['forced'].tokens
        assert streams['free'].tokens != 6 * [1234], 'the control'
        without, second = one_draw(server, PROMPT, logit_bias={str(likely): -100})
        assert second != likely and likely not in without
        # Others keep their distances.
        common = [token for token in without if token in plain]
        assert len(common) > 10
        for token in common:
            assert abs((without[token] - without[second]) - (plain[token] - plain[second])) < TOLERANCE


def presence_and_frequency_penalties_are_of_the_completion():
    """Each step of a penalized stream against one draw without penalties behind the same tokens, where these are prompt."""
    with Server() as server:
        presence, frequency = 0.6, 0.45
        sampling = {'completion_tokens_max': 24, 'ignore_stop': True, 'logprobs': 20, 'presence_penalty': presence, 'frequency_penalty': frequency}
        stream = ask_all(server, [('r', PROMPT, sampling)])['r']
        penalized = 0
        for index, told in enumerate(stream.choices[0].logprobs):
            output = stream.tokens[:index]
            plain, _ = one_draw(server, PROMPT + output)
            mine = {token: logprob for token, logprob in told['top']}
            penalty = {token: (presence if token in output else 0) + frequency * output.count(token) for token in mine}
            common = [token for token in mine if token in plain]
            base = common[0]
            for token in common:
                expected = plain[token] - plain[base] - penalty[token] + penalty[base]
                assert abs(mine[token] - mine[base] - expected) < TOLERANCE, (index, token, mine[token] - mine[base], expected)
                penalized += penalty[token] > 0
            best = max(plain, key=lambda token: plain[token] - penalty.get(token, presence * (token in output) + frequency * output.count(token)))
            assert stream.tokens[index] == best, f'token {index} is not the best after penalties'
        assert penalized > 10, 'hardly a penalty was looked at'
        greedy = ask_all(server, [('g', PROMPT, {'completion_tokens_max': 200, 'ignore_stop': True}),
                                  ('p', PROMPT, {'completion_tokens_max': 200, 'ignore_stop': True, 'frequency_penalty': 2, 'presence_penalty': 2})])
        assert len(set(greedy['p'].tokens)) > len(set(greedy['g'].tokens)), 'penalties make for variety'


def a_repetition_penalty_divides_and_multiplies_logits():
    """Logits themselves are told nowhere. But of a token that was seen, x - x/2 is twice x/2 - x/4 where x is over 0, and x - 2x half of 2x - 4x where it is not."""
    with Server() as server:
        seen_most = 0
        for case in CASES[:6]:
            prompt = case['completion_ids'][:40]
            tops = [one_draw(server, prompt, repetition_penalty=penalty)[0] for penalty in (1, 2, 4)]
            common = [token for token in tops[0] if token in tops[1] and token in tops[2]]
            fresh = [token for token in common if token not in prompt]
            if not fresh:
                continue
            for token in common:
                x1, x2, x4 = (top[token] - top[fresh[0]] for top in tops)
                if token not in prompt:
                    assert max(abs(x1 - x2), abs(x2 - x4)) < TOLERANCE, 'a token that was not seen has changed'
                    continue
                assert x1 > x2 > x4, 'it became less likely, either way'
                ratio = (x1 - x2) / (x2 - x4)
                assert abs(ratio - 2) < 0.01 or abs(ratio - 0.5) < 0.01, ratio
                seen_most += 1
        assert seen_most > 3, 'no token that was seen was among the likely ones'


def logprobs_are_sorted_and_sum_up():
    with Server() as server:
        ask = {'completion_tokens_max': 40, 'ignore_stop': True}
        streams = ask_all(server, [('greedy', STORY, {**ask, 'logprobs': 20}), ('warm', STORY, {**ask, 'temperature': 1.5, 'seed': 5, 'logprobs': 3}),
                                   ('cold', STORY, {**ask, 'temperature': 1.5, 'seed': 5}), ('chosen', STORY, {**ask, 'temperature': 1.5, 'seed': 5, 'logprobs': 0}),
                                   ('filtered', STORY, {**ask, 'temperature': 0.3, 'top_k': 1, 'seed': 5, 'logprobs': 20})])
        for key, top in (('greedy', 20), ('warm', 3), ('chosen', 0), ('filtered', 20)):
            choice = streams[key].choices[0]
            assert [told['token'] for told in choice.logprobs] == choice.tokens
            for told in choice.logprobs:
                values = [logprob for _, logprob in told['top']]
                assert len(values) == top and values == sorted(values, reverse=True)
                assert sum(map(math.exp, values)) <= 1 + 1e-5 and told['logprob'] <= 0
                assert dict(told['top']).get(told['token'], told['logprob']) == told['logprob']
        assert all(told['top'][0] == [told['token'], told['logprob']] for told in streams['greedy'].choices[0].logprobs), 'greedy takes the most likely'
        assert streams['filtered'].choices[0].logprobs == streams['greedy'].choices[0].logprobs, 'they are of the distribution before temperature and filters'
        assert streams['warm'].tokens == streams['cold'].tokens == streams['chosen'].tokens, 'to tell of a draw does not change it'
        assert streams['cold'].choices[0].logprobs == []


def choices_have_logprobs_and_penalties_of_their_own():
    with Server() as server:
        streams = ask_all(server, [('one', STORY, {**EVERYTHING, 'seed': 9}), ('three', STORY, {**EVERYTHING, 'seed': 9, 'n': 3}),
                                   ('equal', STORY, {**EVERYTHING, 'temperature': 0, 'n': 3})])
        three = streams['three'].choices
        assert (three[0].tokens, three[0].logprobs) == (streams['one'].tokens, streams['one'].choices[0].logprobs)
        assert len({tuple(choice.tokens) for choice in three}) == 3
        assert all(choice.logprobs == streams['equal'].choices[0].logprobs for choice in streams['equal'].choices)


def stop_strings_cut():
    with Server() as server, Client(server.endpoint) as client:
        cases = [case for case in CASES if len(case['completion_ids']) > 30][:6]
        for number, case in enumerate(cases):
            client.submit(f'whole{number}', case['messages'])
        client.finish()
        for number, case in enumerate(cases):
            text = final_text(client.streams[f'whole{number}'])
            assert len(text) > 6, text
            stop = text[len(text) // 2:len(text) // 2 + 3]
            client.submit(f'cut{number}', case['messages'], sampling={'stop': ['never to be seen', stop]})
            client.submit(f'end{number}', case['messages'], sampling={'stop': [text[-2:]]})
            client.submit(f'never{number}', case['messages'], sampling={'stop': [text + '!']})
        client.finish()
        for number, case in enumerate(cases):
            whole, cut, end, never = (client.streams[f'{key}{number}'] for key in ('whole', 'cut', 'end', 'never'))
            text = final_text(whole)
            stop = text[len(text) // 2:len(text) // 2 + 3]
            assert final_text(cut) == text[:text.index(stop)], (text, stop, final_text(cut))
            assert cut.end['reason'] == 'stop' and cut.end['stop_string'] == 1, cut.end
            assert cut.story[:-1] == whole.story[:len(cut.story) - 1] and cut.story[-1][2], 'what came before is whole, and the last message ended'
            assert cut.tokens == whole.tokens[:len(cut.tokens)] and len(cut.tokens) < cut.end['usage']['completion_tokens'] < len(whole.tokens)
            assert final_text(end) == text[:text.index(text[-2:])] and end.end['stop_string'] == 0
            assert never.outcome() == whole.outcome(), 'what is held and comes to nothing is told'
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        assert server.metric('althing_requests_running') + server.metric('althing_requests_waiting') == 0


def stop_strings_of_raw_tokens_and_of_choices():
    with Server() as server:
        ask = {'temperature': 1.2, 'completion_tokens_max': 200, 'ignore_stop': True, 'n': 3, 'seed': 4}
        whole = ask_all(server, [('r', PROMPT, ask)])['r']
        stopped = ask_all(server, [('r', PROMPT, {**ask, 'stop': ['e', '<|']})])['r']
        for choice, end in zip(stopped.choices, stopped.end['choices']):
            assert end['reason'] == 'stop' and end['stop_string'] in (0, 1), end
        for choice, all_of_it, end in zip(stopped.choices, whole.choices, stopped.end['choices']):
            assert choice.tokens == all_of_it.tokens[:len(choice.tokens)] and len(choice.tokens) < end['completion_tokens'] <= 200
        assert stopped.end['usage']['completion_tokens'] == sum(end['completion_tokens'] for end in stopped.end['choices'])


def stop_tokens_end_behind_themselves():
    with Server() as server:
        ask = {'completion_tokens_max': 60, 'ignore_stop': True}
        whole = ask_all(server, [('r', STORY, ask)])['r'].tokens
        token = whole[len(whole) // 2]
        streams = ask_all(server, [('r', STORY, {**ask, 'stop_tokens': [2000, token]})])
        assert streams['r'].tokens == whole[:whole.index(token) + 1]
        assert streams['r'].end['reason'] == 'stop' and 'stop_string' not in streams['r'].end


def bad_fields_are_refused_by_name():
    bad = {'repetition_penalty': (0, -1, 10.5), 'presence_penalty': (-2.5, 2.5), 'frequency_penalty': (-2.5, 2.5), 'logprobs': (21,), 'stop': ([''], ['x'] * 17, ['x' * 257]),
           'stop_tokens': (list(range(17)), [99999]), 'logit_bias': ({'1': 101}, {'1': -101}, {'x': 1}, {'99999': 1}, {str(token): 1 for token in range(1025)})}
    with Server() as server, Client(server.endpoint) as client:
        for field, values in bad.items():
            for number, value in enumerate(values):
                client.submit(f'{field} {number}', STORY, sampling={field: value, 'completion_tokens_max': 2})
        client.submit('good', STORY, sampling={'completion_tokens_max': 2, 'repetition_penalty': 10, 'presence_penalty': -2, 'frequency_penalty': 2, 'logprobs': 20,
                                               'stop': ['x' * 256] * 16, 'stop_tokens': list(range(16)), 'logit_bias': {str(token): 100 for token in range(1024)}})
        client.finish()
        for field, values in bad.items():
            for number, _ in enumerate(values):
                error = client.streams[f'{field} {number}'].end['error']
                assert error['code'] in ('invalid_argument', 'too_large'), (field, number, error)
                assert error['field'].removeprefix('sampling.').split('[')[0] == field, error
        assert client.streams['good'].end['type'] == 'done', client.streams['good'].end


def submit_everything(client, prefix):
    for number in range(3):
        client.submit(f'{prefix}{number}', STORY, sampling={**EVERYTHING, 'seed': number, 'n': 2})
    client.submit(f'{prefix}raw', prompt_tokens=[token % 900 + 10 for token in range(300)], sampling={**EVERYTHING, 'seed': 5})
    # A stop string that is never whole holds text back whenever it begins.
    client.submit(f'{prefix}held', STORY, sampling={**EVERYTHING, 'seed': 6, 'stop': ['e never', 'a never', ' never', 'zzzz']})


def drawn(streams):
    return sum(len(choice.logprobs) for stream in streams for choice in stream.choices)


def a_dead_rank_changes_neither_tokens_nor_logprobs():
    with Server('--allow-faults') as server, Client(server.endpoint) as client:
        submit_everything(client, 'whole-')
        finish([client])
        submit_everything(client, 'split-')
        split = [stream for key, stream in client.streams.items() if key.startswith('split-')]
        pump([client], lambda: drawn(split) > 250, 'in decode')
        victim = server.children()['rank1']
        subprocess.run([BINARY, 'inject', 'kill', '--rank', '1', '--ready-file', server.ready_file], check=True, capture_output=True, timeout=30)
        finish([client])
        assert server.children()['rank1'] != victim and 'rank_died rank=1' in server.log(), 'nobody died'
        assert outcomes([client], 'split-') == outcomes([client], 'whole-')
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)


def a_dead_core_changes_neither_tokens_nor_logprobs():
    split_run(submit_everything, lambda streams: drawn(streams) > 500, 'penalties and logprobs, in decode')


def submit_stopping(client, prefix):
    for number in range(4):
        client.submit(f'{prefix}{number}', STORY, sampling={'temperature': 1.3, 'seed': 30 + number, 'n': 3, 'completion_tokens_max': 300, 'ignore_stop': True,
                                                            'stop': ['the', 'and', 'qu', '!']})


def a_dead_core_changes_no_end_that_text_made():
    def ripe(streams):
        # Some choices have ended by their text, and others of the same stream go on.
        return any(stream.end is None and any(choice.story and choice.story[-1][2] and choice.story[-1][0] == 'final' for choice in stream.choices) for stream in streams)
    split_run(submit_stopping, ripe, 'some choices stopped')


def preemptions_change_neither_tokens_nor_logprobs():
    def told(server):
        with Client(server.endpoint) as client:
            for number in range(8):
                client.submit(f'r{number}', prompt_tokens=[(7 * token + number) % 900 + 10 for token in range(300)],
                              sampling={**EVERYTHING, 'seed': number, 'completion_tokens_max': 100})
            client.finish(120)
            return [client.streams[f'r{number}'].outcome() for number in range(8)]
    with Server(ranks=1) as server:
        roomy = told(server)
        assert server.metric('althing_preemptions_total') == 0
    tight = ('--kv-mib', '6', '--context', '800')
    for flags in (tight, (*tight, '--kv-mirror-mib', '0')):
        with Server(*flags, ranks=1) as server:
            assert told(server) == roomy, flags
            assert server.metric('althing_preemptions_total') > 0, 'nobody was preempted'


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)


def the_command_line_has_flags_for_all_of_it():
    flags = ('--temperature', '1', '--seed', '5', '--max-tokens', '40', '--colour', 'never')
    with Server() as server:
        chat = ('chat', '--endpoint', server.endpoint, '--once', 'Tell me a story.', *flags)
        for words in (chat, ('generate', TINY, 'Tell me a story.', *flags)):
            lines = [json.loads(line) for line in run(BINARY, *words, '--json', '--logprobs', '2', '--repetition-penalty', '1.2', '--presence-penalty', '-0.5',
                                                      '--frequency-penalty', '0.5', '--logit-bias', '17:2.5', '--logit-bias', '18:-100', '--stop-token', '2000').stdout.splitlines()]
            told = [one for line in lines[:-1] for one in line.get('logprobs', [])]
            assert lines[-1]['type'] == 'done' and len(told) == lines[-1]['usage']['completion_tokens'], words
            assert all(len(one['top']) == 2 for one in told)
        whole = run(BINARY, *chat).stdout
        word = whole.split()[-1][:2]
        stopped = run(BINARY, *chat, '--stop', 'never', '--stop', word, '--json').stdout.splitlines()
        assert json.loads(stopped[-1]).get('stop_string') == 1, stopped[-1]
    for flag, value in (('--repetition-penalty', '0'), ('--presence-penalty', '3'), ('--frequency-penalty', 'x'), ('--logit-bias', '17'), ('--logit-bias', '17:101'), ('--logit-bias', 'x:1'),
                        ('--stop-token', '-1'), ('--logprobs', '21')):
        refused = run(BINARY, 'chat', '--once', 'x', flag, value)
        assert refused.returncode == 2 and flag in refused.stderr, (flag, value, refused)


if __name__ == '__main__':
    main(a_bias_forces_a_token_and_forbids_one, presence_and_frequency_penalties_are_of_the_completion, a_repetition_penalty_divides_and_multiplies_logits,
         logprobs_are_sorted_and_sum_up, choices_have_logprobs_and_penalties_of_their_own, stop_strings_cut, stop_strings_of_raw_tokens_and_of_choices,
         stop_tokens_end_behind_themselves, bad_fields_are_refused_by_name, a_dead_rank_changes_neither_tokens_nor_logprobs,
         a_dead_core_changes_neither_tokens_nor_logprobs, a_dead_core_changes_no_end_that_text_made, preemptions_change_neither_tokens_nor_logprobs,
         the_command_line_has_flags_for_all_of_it)
