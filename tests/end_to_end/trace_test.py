#!/usr/bin/env python3
"""Traces of routing, from the wire and from `althing trace`: over all requests of a server they are its expert counters, to the last token, in every layout and whatever dies meanwhile."""
import itertools
import json
import os
import signal
import subprocess
import tempfile
import xml.etree.ElementTree

from experts_test import CONFIG, EXPERTS, LAYERS, TOP_K, settled
from harness import BINARY, PATIENCE, ROOT, TINY, Client, Server, alive, ask, conversations, main, wait_for
from inject_test import inject

CASES = conversations(24)
ON = '--expert-metrics'
FOUR = ('--dp', '2', '--tp', '2', '--ep', '2', '--replicas', 'ids=0,3')
PHASES = ('router', 'capacity', 'dispatch', 'experts', 'merge')


def trace(*words, ok=True):
    """(lines, standard error) of althing trace."""
    result = subprocess.run([str(word) for word in (BINARY, 'trace', *words)], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)
    assert (result.returncode == 0) == ok, result
    return [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def expanded(request, choice, part):
    """A part of a delta's `routing` as the lines that docs/routing-trace.md describes."""
    for (t, token), layer in itertools.product(enumerate(part['tokens']), range(part['layers'])):
        cell = t * part['layers'] + layer
        experts = []
        for expert, chosen, copy, rank, slot, fate, weight in part['experts'][cell * part['experts_per_token']:(cell + 1) * part['experts_per_token']]:
            place = {'rank': rank, 'slot': slot, 'copy': copy} if fate in ('chosen', 'replica', 'rerouted') else {}
            experts.append({'expert': expert, 'chosen': chosen, 'weight': weight, 'fate': fate, **place})
        yield {'request': request, 'choice': choice, 'step': part['step'], 'epoch': part['epoch'], 'position': part['start'] + t, 'token': token,
               'recomputed': t < part['recomputed'], 'layer': layer, 'logits': part['logits'][cell * part['top_m']:(cell + 1) * part['top_m']], 'experts': experts,
               'step_nanoseconds': dict(zip(PHASES, part['nanoseconds'][layer]))}


def lines_of(client):
    return [line for key, stream in client.streams.items() for c, choice in enumerate(stream.choices) for part in choice.routing for line in expanded(key, c, part)]


def load(client, count, tokens=24, prefix='', **sampling):
    for number in range(count):
        client.submit(f'{prefix}{number}', CASES[number]['messages'], trace_top_m=3, sampling={'completion_tokens_max': tokens, **sampling})


def until_streams_go_on(client):
    while sum(len(stream.tokens) for stream in client.streams.values()) < 40:
        client.step()


def recount(server, lines):
    """What tools/routing-recount says: (whether all is equal, what it printed)."""
    settled(server)
    with tempfile.TemporaryDirectory(prefix='althing-recount-') as folder:
        with open(f'{folder}/trace.jsonl', 'w', encoding='utf-8') as file:
            file.writelines(json.dumps(line) + '\n' for line in lines)
        result = subprocess.run([ROOT / 'tools/routing-recount', '--experts', f'http://{server.metrics_address}/experts.json', f'{folder}/trace.jsonl'],
                                capture_output=True, text=True, timeout=60 * PATIENCE)
    return result.returncode == 0, result.stdout + result.stderr


def expect_equal(server, lines):
    equal, said = recount(server, lines)
    assert equal and said.endswith(f'{LAYERS * EXPERTS} passed, 0 failed, 0 skipped\n'), said
    # A recount that could not fail would say nothing.
    for wrong in (lines[1:], lines + lines[:1]):
        equal, said = recount(server, wrong)
        assert not equal and 'FAILED' in said, said


def served(*flags, ranks):
    """Requests that end by themselves, so that steps behind their ends are counted, too; one with three choices; and one that its client gives up."""
    with Server(ON, *flags, ranks=ranks) as server, Client(server.endpoint) as client:
        load(client, 8, tokens=60)
        client.submit('three', CASES[9]['messages'], trace_top_m=2, sampling={'completion_tokens_max': 20, 'n': 3, 'temperature': 1.0, 'seed': 5})
        client.submit('given up', CASES[10]['messages'], trace_top_m=1, sampling={'completion_tokens_max': 400, 'ignore_stop': True})
        while len(client.streams['given up'].tokens) < 5:
            client.step()
        client.send('cancel', request_id='given up')
        client.finish()
        lines = lines_of(client)
        expect_equal(server, lines)
        assert any(stream.end['reason'] == 'stop' for stream in client.streams.values() if stream.end['type'] == 'done')
        assert {line['choice'] for line in lines} == {0, 1, 2} and not any(line['recomputed'] for line in lines)
        return lines


def one_rank_recounts():
    lines = served(ranks=1)
    assert all(pair['rank'] == 0 and pair['slot'] == pair['expert'] for line in lines for pair in line['experts'])


def four_ranks_with_replicas_recount():
    lines = served(*FOUR, ranks=4)
    places = {(pair['expert'], pair['copy'], pair['rank'], pair['slot']) for line in lines for pair in line['experts']}
    assert {rank for _, _, rank, _ in places} == {0, 1, 2, 3}
    copies = {expert: len({rank for e, _, rank, _ in places if e == expert}) for expert in range(EXPERTS)}
    assert copies[0] == copies[3] == 3 and copies[1] == 2, copies
    assert len({(rank, slot): expert for expert, _, rank, slot in places}) == len(places), 'a slot holds one expert'


def experts_that_refuse_recount():
    """Rerouted and dropped pairs are told, and are counted where they were computed."""
    for policy in ('reroute', 'drop'):
        with Server(ON, '--capacity-policy', policy, '--capacity-factor', '0.9', '--dynamic-k', 'gap:1', ranks=2) as server, Client(server.endpoint) as client:
            load(client, 6)
            client.finish()
            lines = lines_of(client)
            fates = {pair['fate'] for line in lines for pair in line['experts']}
            assert {'chosen', 'omitted', 'rerouted' if policy == 'reroute' else 'dropped'} <= fates, fates
            with tempfile.NamedTemporaryFile('w', suffix='.jsonl') as file:
                file.writelines(json.dumps(line) + '\n' for line in lines)
                file.flush()
                command = [ROOT / 'tools/routing-recount', '--experts', f'http://{server.metrics_address}/experts.json', file.name]
                wait_for('the recount is equal', lambda: subprocess.run(command, capture_output=True, timeout=60 * PATIENCE).returncode == 0)


def killed(victim, *flags, ranks, tokens=400):
    """Kills a rank in mid-stream. The lines of all streams, which must be the counters still."""
    with Server(ON, *flags, ranks=ranks) as server, Client(server.endpoint) as client:
        before, epoch = server.children(), server.epoch()
        load(client, 8, tokens=tokens, ignore_stop=True)
        until_streams_go_on(client)
        os.kill(before[victim], signal.SIGKILL)
        wait_for('the killed process is gone', lambda: not alive(before[victim]), 2)
        wait_for('another membership', lambda: server.ready(epoch), 10)
        client.finish()
        assert all(stream.end['type'] == 'done' for stream in client.streams.values())
        assert server.children().get('core') == before['core']
        lines = lines_of(client)
        expect_equal(server, lines)
        assert len({line['epoch'] for line in lines}) > 1, 'the streams were over before'
        again = sum(line['recomputed'] for line in lines) // LAYERS
        assert again == server.metric('althing_kv_recomputed_tokens_total'), again
        print(f'  {len(lines)} lines, {again} tokens computed again')
        return again


def a_rank_dies_and_comes_back():
    assert killed('rank2', '--kv-mirror-mib', '0', *FOUR, ranks=4) > 0


def the_rank_that_tells_dies():
    assert killed('rank0', '--kv-mirror-mib', '0', ranks=2) > 0


def preempted_requests_recount():
    with Server(ON, '--kv-mib', '3', '--context', '400', '--kv-mirror-mib', '0', ranks=1) as server, Client(server.endpoint) as client:
        load(client, 8, tokens=120, ignore_stop=True)
        client.finish(120)
        lines = lines_of(client)
        expect_equal(server, lines)
        again = sum(line['recomputed'] for line in lines) // LAYERS
        assert server.metric('althing_preemptions_total') > 0 and again == server.metric('althing_kv_recomputed_tokens_total') > 0, again


def a_result_that_got_lost_is_in_no_trace_until_it_is_computed_again():
    with Server(ON, '--allow-faults', '--kv-mirror-mib', '0', ranks=2) as server, Client(server.endpoint) as client:
        epoch = server.epoch()
        load(client, 4, tokens=400, ignore_stop=True)
        until_streams_go_on(client)
        inject(server, 'drop', '--rank', '0', '--after', '3')
        wait_for('another membership', lambda: client.step(0.02) or server.ready(epoch), 20)
        client.finish()
        lines = lines_of(client)
        expect_equal(server, lines)
        assert any(line['recomputed'] for line in lines), 'nothing was lost'


def what_the_mirror_brings_back_is_in_no_trace():
    killed('rank1', ranks=4)


def another_core_goes_on_tracing():
    """It counts from 0; what it computes is traced, and told apart by its epochs."""
    with Server(ON, ranks=2) as server, Client(server.endpoint) as client:
        core = server.children()['core']
        load(client, 5, tokens=400, ignore_stop=True)
        until_streams_go_on(client)
        os.kill(core, signal.SIGKILL)
        wait_for('another core serves', lambda: client.step(0.02) or (server.children().get('core') not in (None, core) and server.ready()), 20)
        client.finish()
        assert all(stream.end['type'] == 'done' for stream in client.streams.values())
        lines = lines_of(client)
        first = json.loads(server.get('/experts.json')[1])['first_epoch']
        assert min(line['epoch'] for line in lines) < first <= max(line['epoch'] for line in lines)
        expect_equal(server, [line for line in lines if line['epoch'] >= first])
        equal, said = recount(server, lines)
        assert equal, said


def path(lines):
    """Where tokens went, without what another run may do otherwise: numbers of steps, times, and which copy's turn it was."""
    return [(line['position'], line['token'], line['layer'], line['logits'], [(pair['expert'], pair['weight']) for pair in line['experts']]) for line in lines]


def equal_prompts_take_equal_paths():
    """Alone and in a batch; and neighbours that are not traced hear what they would hear without."""
    question = CASES[0]['messages'][-1]['content']
    question = question if isinstance(question, str) else question[0]['text']
    with Server(*FOUR, ranks=4) as server, Client(server.endpoint) as client:
        words = (question, '--endpoint', server.endpoint, '--max-tokens', '12', '--top-m', '5')
        first, _ = trace(*words)
        again, said = trace(*words)
        assert path(first) == path(again) and len(first) > 12 * LAYERS
        assert all(name in said for name in PHASES) and 'P95' in said, said
        for number in range(1, 9):
            ask(client, f'q{number}', CASES[number])
        batched, _ = trace(*words)
        client.finish()
        assert path(first) == path(batched), 'neighbours changed a token\'s path'
        for number in range(1, 9):
            assert client.streams[f'q{number}'].tokens == CASES[number]['completion_ids'], number
            assert client.streams[f'q{number}'].choices[0].routing == []
        assert path(first) != path(trace(question + '?', *words[1:])[0]), 'the comparison must be able to fail'
        for line in first:
            logits = [logit for _, logit in line['logits']]
            assert logits == sorted(logits, reverse=True) and len(logits) == 5, line
            assert [pair['expert'] for pair in line['experts']] == [expert for expert, _ in line['logits'][:TOP_K]], line
            assert abs(sum(pair['weight'] for pair in line['experts']) - 1) < 1e-5, line
            assert tuple(line['step_nanoseconds']) == PHASES and line['step_nanoseconds']['experts'] > 0, line


def without_a_server_and_as_a_picture():
    with tempfile.TemporaryDirectory(prefix='althing-trace-') as folder:
        lines, said = trace('Hello', '--model', TINY, '--max-tokens', '6', '--heat-map', f'{folder}/map.svg')
        assert [(line['position'], line['layer']) for line in lines] == [(p, l) for p in range(len(lines) // LAYERS) for l in range(LAYERS)]
        assert all(len(line['experts']) == CONFIG['num_experts_per_tok'] and len(line['logits']) == 4 for line in lines)
        assert 'together' in said, said
        picture = xml.etree.ElementTree.parse(f'{folder}/map.svg').getroot()
        space = '{http://www.w3.org/2000/svg}'
        assert picture.tag == space + 'svg'
        cells = [cell.find(space + 'title') for cell in picture.iter(space + 'rect')]
        # Both maps, and the ground.
        assert sum(cell is not None for cell in cells) == LAYERS * EXPERTS + len(lines), len(cells)
        _, said = trace('Hello', '--model', TINY, '--max-tokens', '2', '--heat-map', f'{folder}/none/map.svg', ok=False)
        assert 'cannot write the heat maps' in said, said


def chat_and_generate_write_one_beside_the_answer():
    with tempfile.TemporaryDirectory(prefix='althing-trace-') as folder, Server(ranks=2) as server:
        for command in (('chat', 'Hello', '--endpoint', server.endpoint), ('generate', TINY, 'Hello')):
            words = (BINARY, *command, '--max-tokens', '5')
            without, traced = (subprocess.run([str(word) for word in (*words, *more)], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)
                               for more in ((), ('--trace-routing', f'{folder}/{command[0]}')))
            assert without.returncode == traced.returncode == 0 and without.stdout == traced.stdout, (without, traced)
            lines = [json.loads(line) for line in open(f'{folder}/{command[0]}', encoding='utf-8')]
            assert len(lines) >= LAYERS * 5 and lines[-1]['layer'] == LAYERS - 1, lines[-1:]
        _, said = trace('Hello', '--endpoint', server.endpoint, '--trace-routing', f'{folder}/x', ok=False)
        assert '--trace-routing' in said, said


def what_cannot_be_traced_is_refused_by_name():
    with Server('--traces-max', '0', ranks=1) as server:
        _, said = trace('Hello', '--endpoint', server.endpoint, ok=False)
        assert '--traces-max is 0' in said, said
    with Server('--traces-max', '2', ranks=1) as server, Client(server.endpoint) as client:
        client.submit('long', CASES[0]['messages'], trace_top_m=1, sampling={'completion_tokens_max': 1000, 'ignore_stop': True, 'n': 2})
        while not client.streams['long'].accepted:
            client.step()
        client.submit('third', CASES[1]['messages'], trace_top_m=1)
        client.submit('quiet', CASES[1]['messages'], sampling={'completion_tokens_max': 3})
        client.submit('much', CASES[1]['messages'], trace_top_m=33)
        while any(client.streams[key].end is None for key in ('third', 'quiet', 'much')):
            client.step()
        busy, much = client.streams['third'].end['error'], client.streams['much'].end['error']
        assert busy['code'] == 'busy' and '2 sequences are being traced' in busy['message'] and busy['field'] == 'trace_top_m', busy
        assert much['code'] == 'too_large' and much['field'] == 'trace_top_m', much
        assert client.streams['quiet'].end['type'] == 'done'
    for words in (('--top-m', '0'), ('--top-m', '33')):
        _, said = trace('Hello', *words, ok=False)
        assert '--top-m' in said, said
    _, said = trace('Hello', '--raw', ok=False)
    assert '--model' in said, said


if __name__ == '__main__':
    main(one_rank_recounts, four_ranks_with_replicas_recount, experts_that_refuse_recount, a_rank_dies_and_comes_back, the_rank_that_tells_dies, preempted_requests_recount,
         a_result_that_got_lost_is_in_no_trace_until_it_is_computed_again, what_the_mirror_brings_back_is_in_no_trace, another_core_goes_on_tracing,
         equal_prompts_take_equal_paths, without_a_server_and_as_a_picture, chat_and_generate_write_one_beside_the_answer, what_cannot_be_traced_is_refused_by_name)
