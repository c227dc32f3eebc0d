#!/usr/bin/env python3
"""What a server says of its experts, against an independent count: every token that was computed for somebody is at exactly top_k experts of every layer, whatever died meanwhile.

The independent counts are the clients' (prompt and completion tokens; the last token of a completion is never computed), the scheduler's own (tokens of accepted steps, tokens that were
computed again), and for equality another server in another layout.
"""
import json
import os
import re
import signal

from harness import TINY, Client, Server, alive, conversations, main, wait_for
from inject_test import inject

CASES = conversations(48)
CONFIG = json.loads((TINY / 'config.json').read_text())
LAYERS, EXPERTS, TOP_K = CONFIG['num_hidden_layers'], CONFIG['num_local_experts'], CONFIG['num_experts_per_tok']
SAMPLE = re.compile(r'^(\w+)\{(.*)\} (\S+)$')
ON = '--expert-metrics'


def series(text, name):
    """{labels: value as text} of one metric; labels as a tuple of integers in their order on the page."""
    found = {}
    for line in text.splitlines():
        match = SAMPLE.match(line)
        if match and match[1] == name:
            found[tuple(int(value) for value in re.findall(r'"(\d+)"', match[2]))] = match[3]
    return found


def layer_sums(found):
    sums = [0] * LAYERS
    for labels, value in found.items():
        sums[labels[0]] += int(value)
    return sums


def counted(server):
    """Tokens that the experts say were computed, if all pages and all sums agree on one number; else None, for whoever waits for it."""
    status, text = server.get('/metrics/experts')
    if status == 0:
        return None  # a machine so busy that no page comes in time
    assert status == 200, (status, text)
    tokens = series(text, 'althing_expert_tokens_total')
    assert len(tokens) == LAYERS * EXPERTS, len(tokens)
    sums = {*layer_sums(tokens), *layer_sums(series(text, 'althing_expert_slot_tokens_total')),
            *layer_sums(series(server.get('/metrics')[1], 'althing_layer_rank_tokens_total'))}
    known = json.loads(server.get('/experts.json')[1])
    sums |= {sum(layer) for layer in known['total']} | {sum(layers) for layers in zip(*known['per_rank'])}
    sums |= {TOP_K * known['tokens'], TOP_K * int(server.metric('althing_step_tokens_total'))}
    return known['tokens'] if len(sums) == 1 else None


def settled(server):
    """The number on which all pages agree, once nothing runs. Counts are added beside the steps, so they may be a moment behind."""
    wait_for('nothing runs', lambda: server.metric('althing_requests_running') + server.metric('althing_requests_waiting') == 0)
    wait_for('steps in flight have ended', lambda: server.metric('althing_kv_blocks_used') == 0)
    return wait_for('all pages agree', lambda: counted(server))


def load(client, count, tokens=24, prefix=''):
    """Completions of a length that is known before, so that no step is computed for a stream that has ended."""
    for number in range(count):
        client.submit(f'{prefix}{number}', CASES[number]['messages'], sampling={'completion_tokens_max': tokens, 'ignore_stop': True})


def until_streams_go_on(client):
    while sum(len(stream.tokens) for stream in client.streams.values()) < 40:
        client.step()


def of_clients(client):
    """Tokens that had to be computed for what the clients were told."""
    total = 0
    for key, stream in client.streams.items():
        assert stream.end['type'] == 'done', (key, stream.end)
        usage = stream.end['usage']
        total += usage['prompt_tokens'] - usage['cached_tokens'] + usage['completion_tokens'] - 1
    return total


def recomputed(server):
    return int(server.metric('althing_kv_recomputed_tokens_total'))


def totals(server):
    text = server.get('/metrics/experts')[1]
    return series(text, 'althing_expert_tokens_total'), series(text, 'althing_expert_gate_weight_total')


def serve(*flags, ranks, count=12):
    with Server(ON, *flags, ranks=ranks) as server, Client(server.endpoint) as client:
        load(client, count)
        client.finish()
        tokens = settled(server)
        assert tokens == of_clients(client) + recomputed(server), (tokens, of_clients(client), recomputed(server))
        assert recomputed(server) == 0
        page = server.get('/metrics')[1]
        for name in ('entropy_nats', 'logit_variance', 'top1_margin'):
            found = series(page, f'althing_router_{name}')
            assert len(found) == LAYERS and all(0 < float(value) < 100 for value in found.values()), (name, found)
        weights = series(page, 'althing_router_gate_weight')
        for layer in range(LAYERS):
            assert abs(sum(float(weights[layer, place]) for place in range(TOP_K)) - 1) < 1e-6, weights
        assert server.metric('althing_reports_refused_total') == 0
        return totals(server)


def one_rank_and_four_count_the_same():
    """Of one TP degree bits do not depend on the layout; so neither does any count, nor any sum of gate weights to its last digit."""
    each = '--prefix-sharing', 'off'  # how much of a prompt is there already depends on when the one before it ended
    alone = serve(*each, ranks=1)
    four = serve(*each, '--dp', '4', '--tp', '1', '--ep', '4', ranks=4)
    assert alone == four, 'four ranks count otherwise than one'
    assert alone == serve(*each, '--dp', '2', '--tp', '1', '--ep', '1', ranks=2), 'two whole copies count otherwise than one'
    assert alone == serve(*each, '--dp', '2', '--tp', '1', '--ep', '2', '--replicas', 'ids=0,3', ranks=2), 'replicas count otherwise'
    assert alone != serve(*each, ranks=1, count=13), 'the comparison must be able to fail'


def every_token_of_a_split_model_is_at_top_k_experts():
    serve(ranks=4)


def killed_in_mid_stream(*flags, ranks, victim, lost):
    """Kills a rank in mid-stream. Returns (tokens counted, what the clients were told took, tokens computed again, tokens restored)."""
    with Server(ON, *flags, ranks=ranks) as server, Client(server.endpoint) as client:
        before, epoch = server.children(), server.epoch()
        load(client, 16, tokens=300)
        until_streams_go_on(client)
        os.kill(before[victim], signal.SIGKILL)
        wait_for('the killed process is gone', lambda: not alive(before[victim]), 2)
        wait_for('another membership', lambda: server.ready(epoch), 10)
        client.finish()
        assert server.children().get('core') == before['core'], 'the counters must not have been reset'
        tokens, restored = settled(server), int(server.metric('althing_kv_restored_tokens_total'))
        print(f'  {tokens} tokens computed, {recomputed(server)} of them again, {restored} restored')
        assert recomputed(server) + restored > 0, 'nobody lost anything: the streams were over'
        assert server.metric('althing_rank_failures_total') >= 1
        assert server.metric('althing_reports_refused_total') == 0
        assert json.loads(server.get('/experts.json')[1])['epoch'] > epoch
        assert f'recovered_by={lost}' in server.log(), server.log()
        return tokens, of_clients(client), recomputed(server), restored


def adds_up(*flags, **members):
    """Without a mirror of KV pages, whatever was lost is computed again, so the clients and the scheduler know every token that was computed."""
    tokens, wanted, again, _ = killed_in_mid_stream('--kv-mirror-mib', '0', *flags, **members)
    assert tokens == wanted + again, (tokens, wanted, again)


def a_rank_is_killed_and_started_again():
    adds_up(ranks=4, victim='rank2', lost='respawn')


def rank_0_is_killed_which_tells_for_all():
    adds_up(ranks=2, victim='rank0', lost='respawn')


def a_spare_takes_the_place():
    adds_up('--spares', '1', ranks=2, victim='rank1', lost='spare')


def replicas_serve_on():
    adds_up('--dp', '2', '--tp', '1', '--ep', '1', ranks=2, victim='rank1', lost='replica')


def fewer_ranks_serve_on():
    adds_up('--on-rank-loss', 'shrink', ranks=2, victim='rank1', lost='shrink')


def what_the_mirror_brings_back_is_not_counted_again():
    """A page may come back whose step the scheduler never accepted: its tokens are in no count, so between none and all that was restored is missing."""
    tokens, wanted, again, restored = killed_in_mid_stream(ranks=4, victim='rank2', lost='respawn')
    assert restored > 0 and wanted + again - restored <= tokens <= wanted + again, (tokens, wanted, again, restored)


def a_result_that_got_lost_is_counted_once_it_is_computed_again():
    """The ranks have computed the step; its result never came, and neither did its counts."""
    with Server(ON, '--allow-faults', '--kv-mirror-mib', '0', ranks=2) as server, Client(server.endpoint) as client:
        epoch = server.epoch()
        load(client, 6, tokens=300)
        until_streams_go_on(client)
        inject(server, 'drop', '--rank', '0', '--after', '3')
        wait_for('another membership', lambda: client.step(0.02) or server.ready(epoch), 20)
        client.finish()
        tokens = settled(server)
        assert recomputed(server) > 0, 'nothing was lost'
        assert tokens == of_clients(client) + recomputed(server), (tokens, of_clients(client), recomputed(server))


def preempted_tokens_are_counted_as_often_as_they_are_computed():
    with Server(ON, '--kv-mib', '6', '--context', '800', '--kv-mirror-mib', '0', ranks=1) as server, Client(server.endpoint) as client:
        load(client, 12, tokens=300)
        client.finish(120)
        tokens = settled(server)
        print(f'  {server.metric("althing_preemptions_total"):.0f} preemptions, {recomputed(server)} tokens computed again')
        assert server.metric('althing_preemptions_total') > 0 and recomputed(server) > 0
        assert tokens == of_clients(client) + recomputed(server), (tokens, of_clients(client), recomputed(server))


def another_core_counts_from_0():
    """As all counters of the core do: Prometheus sees a reset. What is counted from then on adds up."""
    with Server(ON, ranks=2) as server, Client(server.endpoint) as client:
        load(client, 8)
        client.finish()
        before = settled(server)
        core = server.children()['core']
        os.kill(core, signal.SIGKILL)
        wait_for('another core serves', lambda: server.children().get('core') not in (None, core) and server.ready(), 20)
        assert server.metric('althing_core_restarts_total') == 1
        with Client(server.endpoint) as after:
            load(after, 3, prefix='after')
            after.finish()
            tokens = settled(server)
            assert tokens == of_clients(after) + recomputed(server) and tokens < before, (tokens, before)


def the_page_of_all_experts_is_opt_in_and_has_a_cap():
    with Server(ranks=1) as server, Client(server.endpoint) as client:
        status, text = server.get('/metrics/experts')
        assert status == 404 and ON in text, (status, text)
        load(client, 1)
        client.finish()
        known = wait_for('counts are there', lambda: (lambda k: k if k['tokens'] else None)(json.loads(server.get('/experts.json')[1])))
        assert (known['layers'], known['experts'], known['top_k']) == (LAYERS, EXPERTS, TOP_K), known
        assert len(known['window']) == LAYERS and all(len(layer) == EXPERTS for layer in known['window']), known
    with Server(ON, '--expert-series-max', '10', ranks=1) as server:
        status, text = server.get('/metrics/experts')
        assert status == 200 and 'althing_expert_tier_disabled 1\n' in text and '--expert-series-max is 10' in text, (status, text)


if __name__ == '__main__':
    main(one_rank_and_four_count_the_same, every_token_of_a_split_model_is_at_top_k_experts, a_rank_is_killed_and_started_again,
         rank_0_is_killed_which_tells_for_all, a_spare_takes_the_place, replicas_serve_on, fewer_ranks_serve_on, what_the_mirror_brings_back_is_not_counted_again,
         a_result_that_got_lost_is_counted_once_it_is_computed_again, preempted_tokens_are_counted_as_often_as_they_are_computed, another_core_counts_from_0,
         the_page_of_all_experts_is_opt_in_and_has_a_cap)
