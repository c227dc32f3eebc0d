#!/usr/bin/env python3
"""What is guessed changes how many steps an answer takes and nothing that is said: every conversation of the tiny model, greedy and sampled, with and without guesses, and
by a draft model, and through the deaths of a rank and of the core."""
import os
import signal

from harness import ROOT, TINY, Client, Server, ServerEnded, conversations, main, wait_for

CASES = conversations(600)
DRAFT = ('--draft-model', ROOT / 'examples/models/tiny-draft')


def answers(server, cases, **sampling):
    """The tokens of all, asked 24 at a time."""
    heard = {}
    with Client(server.endpoint) as client:
        for first in range(0, len(cases), 24):
            for number in range(first, min(first + 24, len(cases))):
                case = cases[number]
                client.submit(f'c{number}', case['messages'], sampling={'completion_tokens_max': len(case['completion_ids']) + 40, 'ignore_stop': True, **sampling})
            client.finish()
        for key, stream in client.streams.items():
            assert stream.end['type'] == 'done', stream.end
            heard[key] = stream.tokens
    return heard


def guesses(server, proposer=''):
    """Right and wrong ones, of all or of one proposer, once the page has caught up."""
    def seen():
        lines = [line for line in server.get('/metrics')[1].splitlines() if line.startswith('althing_guessed_tokens_total{') and proposer in line]
        return tuple(sum(float(line.rsplit(' ', 1)[1]) for line in lines if f'verdict="{verdict}"' in line) for verdict in ('right', 'wrong'))
    wait_for('nothing runs', lambda: server.metric('althing_requests_running') == 0 and server.metric('althing_requests_waiting') == 0)
    return seen()


def compare(cases, *flags, least=0, **sampling):
    with Server('--rows', 32) as server:
        plain, steps = answers(server, cases, **sampling), server.metric('althing_step_seconds_count')
    with Server('--rows', 32, *flags) as server:
        guessed = answers(server, cases, **sampling)
        wait_for('the page knows of guesses', lambda: sum(guesses(server)) > 0, 20)
        right, wrong = guesses(server)
        fewer = server.metric('althing_step_seconds_count')
    assert guessed == plain, f'{sum(guessed[key] != plain[key] for key in plain)} of {len(plain)} answers differ'
    tokens = sum(map(len, plain.values()))
    print(f'    {len(plain)} answers, {tokens} tokens: {right:.0f} of {right + wrong:.0f} guesses right ({100 * right / (right + wrong):.0f} %), {fewer:.0f} steps instead of {steps:.0f}')
    assert right >= least * (right + wrong), 'too few guesses are right'


def greedy_answers_are_the_same():
    compare(CASES, '--speculate', 6)


def sampled_answers_are_the_same():
    compare(CASES[:120], '--speculate', 6, temperature=1.0, seed='11')


def a_draft_model_changes_no_greedy_answer():
    compare(CASES[:80], *DRAFT, least=0.6)


def a_draft_model_changes_no_sampled_answer():
    compare(CASES[:80], *DRAFT, '--speculate', 3, least=0.6, temperature=1.0, seed='5')


def a_model_that_drafts_for_itself_is_always_right():
    with Server('--draft-model', TINY, '--dp', 2, ranks=2) as server:
        answers(server, CASES[:24], temperature=1.0, seed='2')
        wait_for('the page knows of guesses', lambda: sum(guesses(server, 'proposer="draft"')) > 0, 20)
        right, wrong = guesses(server, 'proposer="draft"')
        assert right > 200 and wrong <= right / 50, (right, wrong)


def one_stream_that_repeats_itself_takes_fewer_steps():
    steps = {}
    prompt = [CASES[0]['completion_ids'][0]] * 40
    for most in (0, 6):
        with Server('--rows', 8, '--speculate', most) as server, Client(server.endpoint) as client:
            client.submit('one', prompt_tokens=prompt, sampling={'completion_tokens_max': 400, 'ignore_stop': True})
            client.finish()
            assert client.streams['one'].end['type'] == 'done'
            steps[most] = server.metric('althing_step_seconds_count'), client.streams['one'].tokens
    assert steps[0][1] == steps[6][1], 'guesses change what is said'
    print(f'    {steps[6][0]:.0f} steps instead of {steps[0][0]:.0f}')
    assert steps[6][0] < steps[0][0], steps


def deaths_amid_guesses_change_nothing(*flags, victim='rank1'):
    cases = CASES[:24]
    with Server('--rows', 32, ranks=2) as server:
        plain = answers(server, cases, temperature=1.0, seed='3')
    with Server('--rows', 32, '--speculate', 4, *flags, ranks=2) as server, Client(server.endpoint) as client:
        for number, case in enumerate(cases):
            client.submit(f'c{number}', case['messages'], sampling={'completion_tokens_max': len(case['completion_ids']) + 40, 'ignore_stop': True, 'temperature': 1.0, 'seed': '3'})
        wait_for('half are under way', lambda: client.step() or sum(len(stream.tokens) > 10 for stream in client.streams.values()) > 12)
        os.kill(server.children()[victim], signal.SIGKILL)
        wait_for('they go on', lambda: client.step() or sum(len(stream.tokens) > 25 for stream in client.streams.values()) > 12, 30)
        os.kill(server.children()['core'], signal.SIGKILL)
        client.finish()
        assert {key: stream.tokens for key, stream in client.streams.items()} == plain


def the_death_of_the_rank_that_drafts_changes_nothing():
    deaths_amid_guesses_change_nothing(*DRAFT, victim='rank0')


def guesses_and_what_forbids_them_are_refused_together():
    for flags, word in ((('--device', 'synthetic'), 'synthetic'), (('--capacity-factor', '1.5', '--capacity-policy', 'drop'), 'expert control')):
        try:
            with Server('--speculate', 4, *flags):
                taken = True
        except ServerEnded as ended:
            assert '--speculate' in str(ended) and word in str(ended), ended
            taken = False
        assert not taken, flags
    for flags, word in (((*DRAFT, '--device', 'synthetic'), 'synthetic'), (('--draft-model', '/nowhere'), 'draft model'), (('--draft-model', 'dummy:20b'), 'vocabulary')):
        try:
            with Server(*flags):
                taken = True
        except ServerEnded as ended:
            assert word in str(ended), ended
            taken = False
        assert not taken, flags


if __name__ == '__main__':
    main(greedy_answers_are_the_same, sampled_answers_are_the_same, a_draft_model_changes_no_greedy_answer, a_draft_model_changes_no_sampled_answer,
         a_model_that_drafts_for_itself_is_always_right, one_stream_that_repeats_itself_takes_fewer_steps, deaths_amid_guesses_change_nothing,
         the_death_of_the_rank_that_drafts_changes_nothing, guesses_and_what_forbids_them_are_refused_together)
