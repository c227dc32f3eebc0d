#!/usr/bin/env python3
"""Requests that begin alike compute their beginning once: what is not computed is told, tokens are the same as without sharing, nothing is shared between tenants, and
a fault in between costs time alone."""
import os
import signal

from harness import Client, Server, conversations, main, wait_for

IDS = [token for case in conversations(400) for token in case['completion_ids']]
PAGE = 16
TURNS = 20


def told(client, key, prompt, completion=8, **members):
    """Runs one request to its end: its usage, and its tokens."""
    client.submit(key, prompt_tokens=prompt, sampling={'completion_tokens_max': completion, 'ignore_stop': True}, **members)
    client.finish()
    stream = client.streams[key]
    assert stream.end['type'] == 'done', stream.end
    return stream.end['usage'], stream.tokens


def agent(server):
    """An agent's loop: what was said and answered, and what a tool says, again and again. Returns [(usage, tokens)] and the lengths that were known before."""
    answers, known, talk = [], [], IDS[:150]
    with Client(server.endpoint) as client:
        for turn in range(TURNS):
            known.append(len(talk) if turn else 0)
            talk = talk + IDS[1000 + 40 * turn:1000 + 40 * turn + 25]
            usage, tokens = told(client, f'turn{turn}', talk, 20)
            answers.append((usage, tokens))
            talk = talk + tokens
    return answers, known


def series(server, name, label=''):
    text = server.get('/metrics')[1]
    return sum(float(line.rsplit(' ', 1)[1]) for line in text.splitlines() if line.startswith(name) and label in line)


def an_agent_of_20_turns_computes_new_tails_only():
    with Server() as server:
        answers, known = agent(server)
        for turn, ((usage, _), before) in enumerate(zip(answers, known)):
            assert usage['cached_tokens'] >= before - 2 * PAGE, (turn, usage, before)
            assert usage['cached_tokens'] <= usage['prompt_tokens'] - 1, usage
        hit = sum(usage['cached_tokens'] for usage, _ in answers)
        assert hit >= 0.95 * sum(known), (hit, sum(known))
        print(f'    {hit} of {sum(known)} tokens that were known were not computed again ({100 * hit / sum(known):.1f} %)')
        wait_for('the metrics say so', lambda: series(server, 'althing_prefix_tokens_total', 'hit') == hit, 20)
        assert series(server, 'althing_kv_blocks_cached') > 0
        wait_for('nothing is used', lambda: series(server, 'althing_kv_blocks_used') == 0, 20)
    with Server('--prefix-sharing', 'off') as server:
        alone, _ = agent(server)
        assert all(usage['cached_tokens'] == 0 and usage['miss'] == 'disabled' for usage, _ in alone), alone
        assert [tokens for _, tokens in alone] == [tokens for _, tokens in answers], 'sharing changes what is said'
        assert series(server, 'althing_kv_blocks_cached') == 0


def an_edit_hits_up_to_where_it_is():
    with Server(ranks=1) as server, Client(server.endpoint) as client:
        prompt = IDS[:600]
        usage, _ = told(client, 'first', prompt)
        assert usage['cached_tokens'] == 0 and usage['miss'] == 'cold', usage
        for number, place in enumerate((599, 590, 584)):
            edited = prompt[:place] + [prompt[place] + 1] + prompt[place + 1:]
            usage, _ = told(client, f'late{number}', edited)
            assert usage['cached_tokens'] >= 600 - 2 * PAGE, (place, usage)
        edited = prompt[:300] + [prompt[300] + 1] + prompt[301:]
        usage, _ = told(client, 'middle', edited)
        assert 300 - 2 * PAGE <= usage['cached_tokens'] <= 300, usage


def tenants_share_with_themselves_alone():
    with Server(ranks=1) as server, Client(server.endpoint) as client:
        prompt = IDS[:200]
        assert told(client, 'a1', prompt, tenant='a')[0]['cached_tokens'] == 0
        usage, _ = told(client, 'b1', prompt, tenant='b')
        assert usage['cached_tokens'] == 0 and usage['miss'] == 'cold', f'{usage}: a tenant learns what another has sent'
        assert told(client, 'a2', prompt, tenant='a')[0]['cached_tokens'] > 150
        wait_for('the operator is told', lambda: series(server, 'althing_prefix_miss_total', '"tenant"') == 1, 20)
    with Server('--prefix-sharing', 'all', ranks=1) as server, Client(server.endpoint) as client:
        told(client, 'a1', prompt, tenant='a')
        assert told(client, 'b1', prompt, tenant='b')[0]['cached_tokens'] > 150


def choices_compute_their_prompt_once():
    with Server(ranks=1) as server, Client(server.endpoint) as client:
        before = series(server, 'althing_step_tokens_total')
        client.submit('n', prompt_tokens=IDS[:400], sampling={'completion_tokens_max': 4, 'ignore_stop': True, 'n': 4, 'temperature': 1.0, 'seed': 1})
        client.finish()
        assert client.streams['n'].end['type'] == 'done', client.streams['n'].end
        computed = series(server, 'althing_step_tokens_total') - before
        assert 400 <= computed <= 400 + 3 * 2 * PAGE + 4 * 4, computed


def a_killed_rank_costs_time_and_no_token():
    with Server(ranks=2) as server:
        whole, _ = agent(server)
    with Server(ranks=2) as server, Client(server.endpoint) as client:
        prompt = IDS[:150] + IDS[1000:1025]
        told(client, 'warm', prompt, 20)
        client.submit('shared', prompt_tokens=prompt, sampling={'completion_tokens_max': 200, 'ignore_stop': True})
        while len(client.streams['shared'].tokens) < 10:
            client.step(0.005)
        os.kill(server.children()['rank1'], signal.SIGKILL)
        client.finish()
        stream = client.streams['shared']
        assert stream.end['type'] == 'done' and stream.tokens[:20] == whole[0][1], stream.end
        assert stream.end['usage']['cached_tokens'] == 160, stream.end
        assert series(server, 'althing_faults_total') >= 1, 'no fault happened'
        usage, tokens = told(client, 'after', prompt, 20)
        assert tokens == whole[0][1], usage


if __name__ == '__main__':
    main(an_agent_of_20_turns_computes_new_tails_only, an_edit_hits_up_to_where_it_is, tenants_share_with_themselves_alone, choices_compute_their_prompt_once,
         a_killed_rank_costs_time_and_no_token)
