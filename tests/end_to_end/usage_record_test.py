#!/usr/bin/env python3
"""Accounting from outside: what a model weighs, as `althing account` says it."""
import json
import subprocess

from harness import BINARY, PATIENCE, TINY, main


def account(*words):
    done = subprocess.run([str(BINARY), 'account', *map(str, words)], capture_output=True, text=True, timeout=60 * PATIENCE)
    return done.returncode, done.stdout, done.stderr


def a_model_is_counted_three_ways_apart():
    for size, parameters, active in (('20b', 20_914_757_184, 3_608_307_264), ('120b', 116_829_156_672, 5_132_849_472)):
        code, out, complaint = account(f'dummy:{size}', '--json', '--context', 1000, '--bandwidth-gbps', 1000)
        assert code == 0, complaint
        found = json.loads(out)
        weights, parts = found['weights'], found['parts'].values()
        assert (weights['parameters'], weights['active_parameters']) == (parameters, active), found
        assert all(sum(part[count] for part in parts) == weights[count] for count in weights), found
        assert found['read_bytes'] == weights['read_bytes'] + found['kv_read_bytes'] == found['roofline']['read_bytes']
        assert abs(found['roofline']['floor_ms'] - found['read_bytes'] / 1e9) < 1e-5, found['roofline']  # 10^12 bytes a second
        assert found['gradients'] == 'not applicable at inference'
        rounded = json.loads(account(f'dummy:{size}', '--json', '--dense', 'fp8')[1])['weights']
        assert rounded['read_bytes'] < weights['read_bytes'] and rounded['stored_bytes'] == weights['stored_bytes']
    code, out, _ = account(TINY)
    assert code == 0 and '19566576' in out and 'not applicable at inference' in out and 'an assumption' in out, out


def what_cannot_be_counted_is_one_line():
    for code, needle, *words in ((2, 'use 20b or 120b', 'dummy:7b'), (2, "--dense is 'fp4'", TINY, '--dense', 'fp4'), (2, 'at most 2047', TINY, '--context', 2048),
                                 (2, '--bandwidth-gbps', TINY, '--bandwidth-gbps', 0), (3, '/nowhere', '/nowhere')):
        found, out, complaint = account(*words)
        assert found == code and needle in complaint and not out and 'Traceback' not in complaint, (words, found, complaint)


if __name__ == '__main__':
    main(a_model_is_counted_three_ways_apart, what_cannot_be_counted_is_one_line)
