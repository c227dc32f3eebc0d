#!/usr/bin/env python3
"""Layouts of ranks as whole servers: DP groups, experts on copies, the settings that say so, and a rank of one group killed under load."""
import os
import signal
import subprocess
import tempfile
import time

from faults_test import judge, serves_again, start_load
from harness import BINARY, PATIENCE, TINY, Client, Server, alive, ask, conversations, main, wait_for

CASES = conversations(64)
TWO_GROUPS = ('--dp', '2', '--tp', '1', '--ep', '2')


def serve_and_compare(count, *flags, ranks):
    with Server(*flags, ranks=ranks) as server, Client(server.endpoint) as client:
        for number in range(count):
            ask(client, f'{number}', CASES[number])
        client.finish(300)
        wrong = [number for number in range(count) if client.streams[f'{number}'].tokens != CASES[number]['completion_ids']]
        assert not wrong, wrong
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        return server.log()


def two_groups_of_one_rank_answer_as_one():
    log = serve_and_compare(64, *TWO_GROUPS, ranks=2)
    assert 'in each of 2 DP groups' in log, log


def two_groups_of_two_with_replicas_answer_as_one():
    serve_and_compare(16, '--dp', '2', '--ep', '2', '--replicas', 'ids=0,5', ranks=4)


def in_process_and_generate_take_layouts_too():
    serve_and_compare(4, '--in-process', *TWO_GROUPS, '--replicas', '2', ranks=2)
    question = next(case for case in conversations(200) if len(case['messages']) == 2 and case['group'] == 'facts')['messages'][1]['content']
    answers = [subprocess.run([BINARY, 'generate', TINY, question, '--colour', 'never', '--ranks', ranks, *flags], capture_output=True, text=True,
                              timeout=30 * PATIENCE, check=True).stdout for ranks, flags in (('1', ()), ('2', TWO_GROUPS))]
    assert answers[0].strip() and answers[0] == answers[1], answers


def kill_one_group_s_rank_under_load():
    with Server(*TWO_GROUPS, ranks=2) as server, Client(server.endpoint) as client:
        ask(client, 'warm', CASES[0])
        client.finish()
        children, epoch = server.children(), server.epoch()
        # The wrong target: a process that is no rank dies, under load, and nothing changes.
        bystander = subprocess.Popen(['sleep', '600'])
        start_load(client, 16)
        bystander.kill()
        assert bystander.wait() == -signal.SIGKILL
        client.finish()
        assert server.children() == children and server.epoch() == epoch
        client.streams.clear()
        start_load(client)
        victim = children['rank1']
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        wait_for('the killed process is gone', lambda: not alive(victim), 2)
        wait_for('rank1 is started again', lambda: server.children().get('rank1') not in (None, victim), 2)
        wait_for('ready under a new membership', lambda: server.ready(epoch), 3)
        print(f'  ready again {time.monotonic() - killed:.2f} s after kill -9 of the rank of the second group')
        client.finish()
        done, errors = judge(client, must_all_finish=True)
        assert (done, errors) == (64, 0)
        serves_again(server, killed)
        after = server.children()
        assert all((after[role] == pid) == (role != 'rank1') for role, pid in children.items()), (children, after)
        wait_for('pages of both groups are back', lambda: server.metric('althing_kv_blocks_used') == 0)


def settings_of_layouts_come_from_everywhere_and_are_refused_by_name():
    def config(*words, **environment):
        result = subprocess.run([BINARY, 'serve', TINY, '--print-config', *words], capture_output=True, text=True, env={**os.environ, **environment},
                                timeout=20 * PATIENCE, check=True)
        values = dict(line.split('=', 1) for line in result.stdout.splitlines() if '=' in line and not line.startswith('#'))
        return [values[key].strip('"') for key in ('ranks', 'dp', 'tp', 'ep', 'replicas')], result.stdout

    assert config()[0] == ['1', '1', '0', '0', '0'], config()
    with tempfile.NamedTemporaryFile('w', suffix='.toml') as file:
        file.write('ranks = 4\ndp = 2\nep = 4\nreplicas = "ids=3,5"\n')
        file.flush()
        found, text = config('--config', file.name, '--ep', '2', ALTHING_TP='2')
        assert found == ['4', '2', '2', '2', 'ids=3,5'], found
        with tempfile.NamedTemporaryFile('w', suffix='.toml') as again:  # what is printed can be read
            again.write(text)
            again.flush()
            assert config('--config', again.name)[0] == found
    for needle, words in (('query heads', ('--ranks', '3')), ('dp x tp is 2', ('--ranks', '4', '--dp', '2', '--tp', '1')),
                          ('ep must divide', ('--ranks', '2', '--ep', '3')), ('--replicas', ('--ranks', '2', '--replicas', 'some')),
                          ('holds already', ('--ranks', '2', '--ep', '1', '--replicas', '1'))):
        result = subprocess.run([BINARY, 'serve', TINY, *words], capture_output=True, text=True, timeout=20 * PATIENCE)
        assert result.returncode == 2 and needle in result.stderr, (words, result)


if __name__ == '__main__':
    main(two_groups_of_one_rank_answer_as_one, two_groups_of_two_with_replicas_answer_as_one, in_process_and_generate_take_layouts_too,
         kill_one_group_s_rank_under_load, settings_of_layouts_come_from_everywhere_and_are_refused_by_name)
