#!/usr/bin/env python3
"""Several completions of one prompt in one stream: each is what it is alone, all get in or none does, and cancel, deadline, credit, resume, a dead rank and a dead
core treat them as one request."""
import json
import subprocess
import sys
import time

from core_death_test import finish, outcomes, pump, split_run
from harness import BINARY, PATIENCE, TINY, Client, Server, conversations, main, wait_for

CASES = conversations(8)
STORY = [{'role': 'user', 'content': 'Tell me a story.'}]
SAMPLED = {'temperature': 1.6, 'completion_tokens_max': 120, 'ignore_stop': True}
FOREVER = {'temperature': 1.0, 'completion_tokens_max': 1500, 'ignore_stop': True}


def told(stream):
    return [(choice.tokens, choice.story) for choice in stream.choices]


def each_choice_is_what_it_is_alone():
    with Server() as server, Client(server.endpoint) as client:
        for n in (1, 2, 3, 5):
            client.submit(f'n{n}', STORY, sampling={**SAMPLED, 'seed': 11, 'n': n})
        client.submit('other seed', STORY, sampling={**SAMPLED, 'seed': 12, 'n': 3})
        client.finish()
        five = told(client.streams['n5'])
        assert len(five) == 5
        for n in (1, 2, 3):
            assert told(client.streams[f'n{n}']) == five[:n], f'the choices of n = {n} are not the first ones of n = 5'
        assert len({tuple(tokens) for tokens, _ in five}) == 5, 'choices that do not differ'
        assert told(client.streams['other seed'])[0] != five[0], 'the control: another seed says something else'


def greedy_choices_are_equal():
    with Server() as server, Client(server.endpoint) as client:
        client.submit('one', CASES[0]['messages'])
        client.submit('three', CASES[0]['messages'], sampling={'n': 3})
        client.finish()
        assert told(client.streams['three']) == 3 * told(client.streams['one'])


def usage_is_summed_and_each_reason_told():
    with Server() as server, Client(server.endpoint) as client:
        client.submit('r', CASES[0]['messages'], sampling={'temperature': 1.0, 'seed': 3, 'completion_tokens_max': 40, 'n': 4})
        client.submit('one', CASES[0]['messages'], sampling={'temperature': 1.0, 'seed': 3, 'completion_tokens_max': 40})
        client.finish()
        stream, one = client.streams['r'], client.streams['one']
        ends = stream.end['choices']
        assert [end['completion_tokens'] for end in ends] == [len(choice.tokens) for choice in stream.choices]
        assert stream.end['usage']['completion_tokens'] == sum(end['completion_tokens'] for end in ends)
        assert stream.end['usage']['prompt_tokens'] == one.end['usage']['prompt_tokens'], 'the prompt counts once'
        assert stream.end['reason'] == ('length' if any(end['reason'] == 'length' for end in ends) else 'stop')
        assert {end['reason'] for end in ends} <= {'stop', 'length'} and 'choices' not in one.end
        assert server.metric('althing_requests_accepted_total') == 2 and server.metric('althing_requests_total') == 2


def too_many_are_refused_with_both_numbers():
    with Server() as server, Client(server.endpoint) as client:
        for key, n in (('none', 0), ('17', 17), ('16', 16)):
            client.submit(key, CASES[0]['messages'], sampling={**SAMPLED, 'completion_tokens_max': 2, 'n': n})
        client.finish()
        error = client.streams['17'].end['error']
        assert error['code'] == 'too_large' and error['field'] == 'sampling.n' and '17' in error['message'] and '16' in error['message'], error
        assert client.streams['none'].end['error']['field'] == 'sampling.n'
        assert client.streams['16'].end['type'] == 'done' and len(client.streams['16'].choices) == 16


def all_get_in_or_none_does():
    with Server('--rows', '4', '--sequences', '4') as server, Client(server.endpoint) as client:
        client.submit('two', CASES[0]['messages'], sampling={**FOREVER, 'seed': 1, 'n': 2})
        wait_for('it runs', lambda: client.step() or client.streams['two'].tokens)
        client.submit('three', CASES[0]['messages'], sampling={**SAMPLED, 'n': 3})
        client.submit('five', CASES[0]['messages'], sampling={**SAMPLED, 'n': 5})
        wait_for('both are answered', lambda: client.step() or (client.streams['three'].end and client.streams['five'].end))
        busy, never = client.streams['three'].end['error'], client.streams['five'].end['error']
        assert busy['code'] == 'busy' and all(number in busy['message'] for number in '234'), busy
        assert never['code'] == 'too_large' and '5' in never['message'] and '4' in never['message'], never
        wait_for('two choices are there, and no half of a request', lambda: server.metric('althing_requests_running') + server.metric('althing_requests_waiting') == 2, 3)
        client.submit('pair', CASES[0]['messages'], sampling={**SAMPLED, 'n': 2})
        wait_for('the control gets in', lambda: client.step() or client.streams['pair'].accepted)
        client.send('cancel', request_id='two')
        client.finish()
        assert client.streams['pair'].end['type'] == 'done'


def cancel_and_deadline_end_all_of_them():
    with Server() as server, Client(server.endpoint) as client:
        client.submit('c', CASES[0]['messages'], sampling={**FOREVER, 'seed': 1, 'n': 3})
        client.submit('t', CASES[0]['messages'], sampling={**FOREVER, 'seed': 2, 'n': 3}, timeout_ms=400)
        client.submit('neighbour', CASES[0]['messages'])
        wait_for('all choices run', lambda: client.step() or (len(client.streams['c'].choices) == 3 and all(c.tokens for c in client.streams['c'].choices)))
        client.send('cancel', request_id='c')
        client.finish()
        assert client.streams['c'].end['error']['code'] == 'cancelled', client.streams['c'].end
        assert client.streams['t'].end['error']['code'] == 'deadline', client.streams['t'].end
        assert client.streams['neighbour'].tokens == CASES[0]['completion_ids']
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        assert server.metric('althing_requests_running') + server.metric('althing_requests_waiting') == 0


def credit_holds_all_choices_back_and_starves_none():
    with Server() as server, Client(server.endpoint) as client:
        client.submit('free', STORY, sampling={**SAMPLED, 'seed': 4, 'n': 3})
        client.finish()
        client.submit('held', STORY, sampling={**SAMPLED, 'seed': 4, 'n': 3}, credit=3)
        deltas = 0
        while client.open():
            sequence = client.streams['held'].sequence
            client.step(0.05)
            if client.streams['held'].sequence > sequence and not client.streams['held'].end:
                deltas += 1
                if deltas >= 3:
                    client.send('grant', request_id='held', credit=1)
        assert client.streams['held'].outcome() == client.streams['free'].outcome()


def a_resume_from_any_number_brings_the_same():
    with Server() as server, Client(server.endpoint) as client:
        client.submit('r', STORY, sampling={**SAMPLED, 'seed': 9, 'n': 3})
        heard = []
        while client.open():
            message = client.receive()
            if message and message.get('request_id') == 'r' and message['type'] != 'accepted':
                heard.append(message)
                client.streams['r'].hear(message)
        assert [message['sequence'] for message in heard] == list(range(1, len(heard) + 1))
        assert {message['choice'] for message in heard[:-1]} == {0, 1, 2}
        for last in (0, 1, 2, len(heard) // 3, len(heard) // 2, len(heard) - 2, len(heard) - 1):
            again, asked = [], False
            while len(again) < len(heard) - last:
                if not asked:
                    time.sleep(0.06)  # the server's pause between two resumes of one stream
                    client.send('resume', request_id='r', last_sequence=last)
                    asked = True
                message = client.receive(10)
                assert message, f'nothing came after {last}'
                if message['type'] == 'error' and message['error']['code'] == 'busy':
                    asked = False
                elif message.get('request_id') == 'r' and message['type'] != 'accepted':
                    again.append(message)
            assert again == heard[last:], f'after {last}'
        # The same id again is the same stream again.
        client.streams['r'].__init__()
        time.sleep(0.06)
        client.submit('r', STORY, sampling={**SAMPLED, 'seed': 9, 'n': 3})
        client.finish()
        assert server.metric('althing_requests_accepted_total') == 1


def submit_three(client, prefix):
    for number in range(2):
        client.submit(f'{prefix}{number}', STORY, sampling={**SAMPLED, 'seed': number, 'n': 3})
    ids = [token % 900 + 10 for token in range(600)]
    client.submit(f'{prefix}long', prompt_tokens=ids, sampling={**SAMPLED, 'completion_tokens_max': 30, 'seed': 5, 'n': 2})


def submit_uneven(client, prefix):
    """Choices that stop by themselves, at different lengths: some have ended when the core dies."""
    for number in range(4):
        client.submit(f'{prefix}{number}', CASES[number]['messages'], sampling={'temperature': 1.2, 'seed': 21 + number, 'n': 4, 'completion_tokens_max': 400})


def uneven(streams):
    return any(stream.end is None and sum(bool(choice.story) and choice.story[-1][2] and choice.story[-1][0] == 'final' for choice in stream.choices) in (1, 2)
               for stream in streams)


def core_killed_in_prefill():
    split_run(submit_three, lambda streams: all(stream.accepted for stream in streams) and not any(stream.tokens for stream in streams), 'three choices, in prefill',
              flags=('--prefix-sharing', 'off'))  # else the first round leaves no prefill to the second


def core_killed_in_decode():
    split_run(submit_three, lambda streams: sum(len(choice.tokens) for stream in streams for choice in stream.choices) > 300, 'three choices, in decode')


def core_killed_when_some_choices_have_ended():
    split_run(submit_uneven, uneven, 'some of the choices ended')


def rank_killed_in_decode():
    with Server('--allow-faults') as server, Client(server.endpoint) as client:
        submit_three(client, 'whole-')
        finish([client])
        submit_three(client, 'split-')
        pump([client], lambda: sum(len(choice.tokens) for key in client.open() for choice in client.streams[key].choices) > 200, 'in decode')
        victim = server.children()['rank1']
        subprocess.run([BINARY, 'inject', 'kill', '--rank', '1', '--ready-file', server.ready_file], check=True, capture_output=True, timeout=30)
        finish([client])
        assert server.children()['rank1'] != victim and 'rank_died rank=1' in server.log(), 'nobody died'
        assert outcomes([client], 'split-') == outcomes([client], 'whole-')
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)


def run(*words):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)


def command_line_and_example_print_all_of_them():
    question, flags = 'Tell me a story.', ('--temperature', '1', '--seed', '5', '--max-tokens', '60', '--colour', 'never')
    with Server() as server:
        one = run(BINARY, 'chat', '--endpoint', server.endpoint, '--once', question, *flags)
        chat = run(BINARY, 'chat', '--endpoint', server.endpoint, '--once', question, '-n', '3', *flags)
        assert chat.returncode == 0 and chat.stdout.count('[choice ') == 3, chat
        assert chat.stdout.split('[choice 0]\n')[1].split('[choice 1]')[0] == one.stdout, (chat.stdout, one.stdout)
        refused = run(BINARY, 'chat', '--endpoint', server.endpoint, '-n', '3')
        assert refused.returncode == 2 and '--once' in refused.stderr, refused
        lines = run(BINARY, 'chat', '--endpoint', server.endpoint, '--once', question, '-n', '3', '--json', *flags).stdout.splitlines()
        assert {json.loads(line)['choice'] for line in lines[:-1]} == {0, 1, 2} and len(json.loads(lines[-1])['choices']) == 3
        script = TINY.parents[1] / 'python/choices.py'
        example = run(sys.executable, script, '--endpoint', server.endpoint, '-n', '3', '--seed', '5', '--max-tokens', '60', question)
        assert example.returncode == 0 and len(example.stdout.splitlines()) >= 3, example
        alone = run(sys.executable, script, '--endpoint', server.endpoint, '-n', '1', '--seed', '5', '--max-tokens', '60', question)
        assert alone.returncode == 0 and example.stdout.startswith(alone.stdout), (alone.stdout, example.stdout)
    generate = run(BINARY, 'generate', TINY, question, '-n', '3', *flags)
    assert generate.returncode == 0 and generate.stdout == chat.stdout, (generate, chat.stdout)
    raw = run(BINARY, 'generate', TINY, 'Once upon', '--raw', '-n', '2', *flags)
    assert raw.returncode == 0 and raw.stdout.count('[choice ') == 2, raw


if __name__ == '__main__':
    main(each_choice_is_what_it_is_alone, greedy_choices_are_equal, usage_is_summed_and_each_reason_told, too_many_are_refused_with_both_numbers,
         all_get_in_or_none_does, cancel_and_deadline_end_all_of_them, credit_holds_all_choices_back_and_starves_none,
         a_resume_from_any_number_brings_the_same, core_killed_in_prefill, core_killed_in_decode, core_killed_when_some_choices_have_ended,
         rank_killed_in_decode, command_line_and_example_print_all_of_them)
