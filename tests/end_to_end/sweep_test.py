#!/usr/bin/env python3
"""althing moe-sweep and load-table on the tiny model: rows that must be equal are equal, limits that must bite bite, and counts add up."""
import json
import math
import subprocess
import tempfile

from harness import BINARY, PATIENCE, ROOT, main

MODEL = ROOT / 'examples/models/tiny'
CONFIG = json.loads((MODEL / 'config.json').read_text())
EXPERTS = CONFIG.get('num_local_experts') or CONFIG['num_experts']
TOP_K = CONFIG.get('num_experts_per_tok') or CONFIG['experts_per_token']


def run(*arguments):
    done = subprocess.run([str(BINARY), *map(str, arguments)], capture_output=True, text=True, timeout=120 * PATIENCE)
    return done.returncode, done.stdout, done.stderr


def rows(*arguments):
    code, out, complaint = run(*arguments, '--json')
    assert code == 0, (code, complaint)
    return [json.loads(line) for line in out.splitlines()]


def limits_bite_and_room_is_free():
    found = {(row['policy'], row['capacity_factor'], row['batch']): row
             for row in rows('moe-sweep', MODEL, '--batches', '1,16', '--steps', '6', '--factors', '0.5,4', '--dynamic-k', 'gap:0.5,mass:1')}
    for (policy, factor, batch), row in found.items():
        assert row['p50_ms'] <= row['p95_ms'] <= row['p99_ms'] and row['divergence_nats'] > -1e-9, row
        if policy == 'mass:1' or factor == 4 or policy == 'none':
            # Nothing is diverted, so these are the dropless bits.
            assert row['match'] == 1 and abs(row['divergence_nats']) < 1e-12 and row['rerouted'] == row['dropped'] == row['omitted'] == 0, row
    sixteen = {policy: found[policy, 0.5, 16] for policy in ('reroute', 'drop', 'pad')}
    assert sixteen['drop']['dropped'] == sixteen['pad']['dropped'] > 0.3 and sixteen['drop']['rerouted'] == 0
    assert sixteen['reroute']['rerouted'] > 0 and sixteen['reroute']['dropped'] <= sixteen['drop']['dropped']
    assert all(row['divergence_nats'] > 1e-3 and row['utilisation'] > 0.5 for row in sixteen.values())
    assert sixteen['drop']['divergence_nats'] == sixteen['pad']['divergence_nats']
    assert found['gap:0.5', None, 16]['omitted'] > 0 and found['gap:0.5', None, 16]['divergence_nats'] > 0


def loads_add_up():
    found = rows('load-table', MODEL, '--batches', '1,8,32', '--runs', '12')
    assert [row['batch'] for row in found] == [1, 8, 32]
    for row in found:
        assert math.isclose(row['mean'], row['batch'] * TOP_K / EXPERTS, rel_tol=1e-5), row
        assert min(TOP_K, EXPERTS) <= row['active_experts'] <= min(EXPERTS, row['batch'] * TOP_K), row
        assert math.isclose(row['sigma_over_mean'], row['sigma'] / row['mean'], rel_tol=1e-4) and row['least'] <= row['mean'] <= row['most'] <= row['batch'], row
    # Of one token the deviation is known: k experts with 1, the others with 0.
    share = TOP_K / EXPERTS
    assert math.isclose(found[0]['sigma'], math.sqrt(share * (1 - share)), rel_tol=1e-5)
    assert found[0]['active_experts'] == TOP_K and found[0]['most'] == 1
    assert found == rows('load-table', MODEL, '--batches', '1,8,32', '--runs', '12'), 'the same table twice'
    assert found[1:] != rows('load-table', MODEL, '--batches', '1,8,32', '--runs', '12', '--seed', '7')[1:], 'the control: other rows, other loads'


def prompts_come_from_a_file():
    with tempfile.NamedTemporaryFile('w', suffix='.txt') as file:
        file.write('One prompt\n\nand another one\n')
        file.flush()
        assert rows('load-table', MODEL, '--batches', '4', '--runs', '4', '--prompts', file.name) != rows('load-table', MODEL, '--batches', '4', '--runs', '4')


def bad_input_is_refused():
    with tempfile.NamedTemporaryFile('w') as empty:
        for code, words, *arguments in (
                (3, 'cannot be read', 'moe-sweep', MODEL, '--prompts', '/nowhere/prompts.txt'),
                (2, 'no line of text', 'moe-sweep', MODEL, '--prompts', empty.name),
                (2, "'best'", 'moe-sweep', MODEL, '--policies', 'best'),
                (2, 'capacity-factor', 'moe-sweep', MODEL, '--factors', '0'),
                (2, 'router-temperature', 'moe-sweep', MODEL, '--temperatures', '0'),
                (2, 'gap:LOGITS', 'moe-sweep', MODEL, '--dynamic-k', 'half'),
                (2, 'fewer --steps', 'moe-sweep', MODEL, '--steps', '100000'),
                (2, '1 to 100000', 'moe-sweep', MODEL, '--steps', '4294967240'),
                (2, '--batches', 'load-table', MODEL, '--batches', '0'),
                (3, '/nowhere', 'load-table', '/nowhere')):
            got, out, complaint = run(*arguments)
            assert (got, out) == (code, '') and words in complaint, (arguments, got, out, complaint)


if __name__ == '__main__':
    main(limits_bite_and_room_is_free, loads_add_up, prompts_come_from_a_file, bad_input_is_refused)
