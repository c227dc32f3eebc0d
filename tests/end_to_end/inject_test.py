#!/usr/bin/env python3
"""Faults on order against whole servers. Every case proves that its fault happened (the process's state, its wait status, the counter of injected faults) and has
a control: the ranks that were not meant are the same processes afterwards, and streams that were not meant are byte-equal.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

from harness import BINARY, PATIENCE, Client, Server, alive, ask, conversations, main, state_of, wait_for

CASES = conversations(32)
FAULT_LINE = re.compile(r'supervisor: fault (.*)')


def inject(server, *words, code=0):
    run = subprocess.run([str(BINARY), 'inject', *map(str, words), '--ready-file', str(server.ready_file)], capture_output=True, text=True, timeout=20)
    assert run.returncode == code, (words, run.returncode, run.stdout, run.stderr)
    return run.stdout if code == 0 else run.stderr


def status(server, rank):
    return {key: int(value) for key, value in re.findall(r'(\w+)=(-?\d+)', inject(server, 'status', '--rank', rank))}


def faults_of(server):
    """The fault lines of the log, each as a dictionary."""
    return [{key: quoted or plain for key, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\S+))', line)} for line in FAULT_LINE.findall(server.log())]


def load(client, count=8, prefix=''):
    for number in range(count):
        ask(client, f'{prefix}{number}', CASES[number])


def judge(client, prefix=''):
    for key, stream in client.streams.items():
        assert stream.end['type'] == 'done', (key, stream.end)
        assert stream.tokens == CASES[int(key[len(prefix):])]['completion_ids'], f'stream {key} changed'


def told(server, count, **members):
    """Waits for the count-th fault line and checks it."""
    wait_for('the fault is told', lambda: len(faults_of(server)) >= count)
    faults = faults_of(server)
    assert len(faults) == count, faults
    assert all(faults[-1][key] == value for key, value in members.items()), (members, faults[-1])
    return faults[-1]


def others_live(before, server, *lost):
    after = server.children()
    for role, pid in before.items():
        assert (after.get(role) == pid) == (role not in lost), (role, before, after)


def started(*flags, **settings):
    return Server('--allow-faults', '--restarts-max', '100', *flags, **settings)


def without_the_flag_nothing_can_be_injected():
    with Server() as server, Client(server.endpoint) as client:
        assert json.loads(server.ready_file.read_text())['control'] == ''
        assert '--allow-faults' in inject(server, 'kill', '--rank', 1, code=5)
        for role, pid in server.children().items():
            links = [os.readlink(f'/proc/{pid}/fd/{fd}') for fd in os.listdir(f'/proc/{pid}/fd')]
            assert not any('control' in link for link in links), (role, links)
        load(client)
        client.finish()
        judge(client)
        assert 'fault' not in server.log()


def wrong_targets_are_refused_and_harm_nobody():
    with started() as server, Client(server.endpoint) as client:
        before = server.children()
        assert 'ranks 0 to 1' in inject(server, 'kill', '--rank', 2, code=2)
        assert 'use kill' in inject(server, 'explode', '--rank', 0, code=2)
        assert '--rank' in inject(server, 'nan', '--core', code=2)
        assert '--core' in inject(server, 'kill', code=2)
        run = subprocess.run([str(BINARY), 'inject', 'kill', '--core', '--control', '/nowhere/control'], capture_output=True, text=True)
        assert run.returncode == 3 and '--allow-faults' in run.stderr, run
        assert abstract(json.loads(server.ready_file.read_text())['control'])
        load(client)
        client.finish()
        judge(client)
        others_live(before, server)
        assert status(server, 0)['faults'] == 0 and not faults_of(server)


def abstract(name):
    """Whether somebody listens on this socket, which is in no folder."""
    assert name.startswith('@')
    with open('/proc/net/unix') as table:
        return any(line.split()[-1] == name for line in table)


def a_socket_with_a_path_is_for_its_user_only_and_goes_with_the_server():
    with tempfile.TemporaryDirectory(prefix='althing-test-') as folder:
        path = pathlib.Path(folder) / 'control'
        with started('--control', path) as server:
            assert json.loads(server.ready_file.read_text())['control'] == str(path)
            assert os.stat(path).st_mode & 0o777 == 0o600
            assert status(server, 0)['faults'] == 0
        assert not path.exists()


def a_killed_server_leaves_nothing_behind_and_a_living_one_keeps_its_socket():
    def folders():
        return set(pathlib.Path('/tmp').glob('althing-??????'))
    before = folders()
    with started() as living:
        with started() as killed:
            names = [json.loads(server.ready_file.read_text())['control'] for server in (living, killed)]
            assert all(abstract(name) for name in names) and names[0] != names[1], names
            children = killed.children()
            killed.process.kill()
            assert killed.process.wait() == -signal.SIGKILL
            wait_for('its children end with it', lambda: not any(alive(pid) for pid in children.values()), 5)
            assert not abstract(names[1]) and folders() <= before, folders() - before
            inject(killed, 'status', '--rank', 0, code=3)
        with started() as after:
            assert status(after, 0)['faults'] == 0
        assert abstract(names[0]) and status(living, 0)['faults'] == 0, 'the control: who lives keeps it'


def a_rank_that_is_left_out_is_told_from_one_that_never_was():
    with Server('--allow-faults', '--on-rank-loss', 'shrink', '--restarts-max', '0', '--quarantine-seconds', '60', ranks=2) as server:
        assert inject(server, 'kill', '--rank', 2, code=2).strip().endswith('this server has ranks 0 to 1')
        before = server.children()
        inject(server, 'kill', '--rank', 1)
        wait_for('one rank serves', lambda: server.ready() and server.metric('althing_degraded') == 1, 10)
        why = inject(server, 'kill', '--rank', 1, code=2)
        numbers = re.search(r'rank 1 is left out since (\d+) s: 1 of 2 ranks serves; member 1 is in quarantine for another (\d+) s, deaths: 1', why)
        assert numbers and int(numbers[1]) + int(numbers[2]) <= 60 and 'althing_degraded' in why, why
        assert 'ranks 0 to 1' in inject(server, 'kill', '--rank', 2, code=2), 'the control: there never was a rank 2'
        assert status(server, 0)['member'] == 0
        others_live(before, server, 'rank1')


def a_killed_rank_is_seen_within_200_ms():
    with started() as server, Client(server.endpoint) as client:
        before = server.children()
        for count, (rank, words) in enumerate([(1, []), (0, ['--collective', 3]), (1, ['--collective', 1])], 1):
            inject(server, 'kill', '--rank', rank, '--after', 6, *words)
            load(client, prefix=f'{count}-')
            client.finish()
            judge(client, f'{count}-')
            fault = told(server, count, rank=str(rank), cause='exit', how='killed by signal 9 (Killed)')
            assert float(fault['detect_ms']) <= 200 * PATIENCE, fault
            assert not alive(before[f'rank{rank}']), 'the fault did not happen'
            others_live(before, server, f'rank{rank}')
            before = server.children()
            client.streams.clear()
        assert server.metric('althing_faults_total') == 3
        assert 'althing_recovery_phase_seconds_count{phase="weights"} 3' in server.get('/metrics')[1]


def a_stopped_rank_is_killed_within_half_a_second_and_never_returns():
    with started() as server, Client(server.endpoint) as client:
        for count, idle in enumerate([False, True], 1):
            before = server.children()
            victim = before['rank1']
            if not idle:
                load(client, prefix=f'{count}-')
                wait_for('tokens', lambda: client.step() or any(stream.tokens for stream in client.streams.values()))
            inject(server, 'stop', '--rank', 1)
            seen = set()
            wait_for('it is stopped', lambda: seen.add(state_of(victim)) or 'T' in seen, 1)
            wait_for('it is gone, and its parent knows', lambda: state_of(victim) is None, 2)
            try:
                os.kill(victim, signal.SIGCONT)
                raise AssertionError('a frozen rank was left behind')
            except ProcessLookupError:
                pass
            client.finish()
            judge(client, f'{count}-')
            client.streams.clear()
            fault = told(server, count, rank='1', cause='frozen', how='the process is stopped')
            assert float(fault['detect_ms']) <= 500 * PATIENCE, fault
            others_live(before, server, 'rank1')


def a_short_stop_is_no_death():
    with started() as server, Client(server.endpoint) as client:
        before = server.children()
        load(client, 16)
        for _ in range(5):
            os.kill(before['rank1'], signal.SIGSTOP)
            wait_for('it is stopped', lambda: state_of(before['rank1']) == 'T', 1)
            os.kill(before['rank1'], signal.SIGCONT)
            client.step(0.05)
        client.finish()
        judge(client)
        others_live(before, server)
        assert not faults_of(server)


def a_stopped_core_is_replaced_within_half_a_second_and_its_streams_go_on():
    with started() as server, Client(server.endpoint) as client:
        for count, words in enumerate([[], ['--after', 4]], 1):
            before = server.children()
            victim = before['core']
            load(client, prefix=f'{count}-')
            wait_for('tokens', lambda: client.step() or any(stream.tokens for stream in client.streams.values()))
            inject(server, 'stop', '--core', *words)
            seen = set()
            wait_for('it is stopped', lambda: seen.add(state_of(victim)) or 'T' in seen, 2)
            wait_for('it is gone, and its parent knows', lambda: state_of(victim) is None, 2)
            client.finish()
            judge(client, f'{count}-')
            client.streams.clear()
            verdicts = [line for line in server.log().splitlines() if 'core_condemned' in line]
            assert len(verdicts) == count and 'the process is stopped' in verdicts[-1], verdicts
            silent = int(re.search(r'silent_ms=(\d+)', verdicts[-1])[1])
            print(f'  verdict after {silent} ms')
            assert silent <= 500 * PATIENCE
            died = [line for line in server.log().splitlines() if 'core_died' in line][-1]
            assert 'the process is stopped, killed by signal 9' in died, died
            others_live(before, server, 'core')


def a_short_stop_of_the_core_is_no_death():
    with started() as server, Client(server.endpoint) as client:
        before = server.children()
        load(client)
        seen = set()
        for _ in range(10):
            wait_for('tokens', lambda: client.step() or any(stream.tokens for stream in client.streams.values()))
            os.kill(before['core'], signal.SIGSTOP)
            wait_for('it is stopped', lambda: seen.add(state_of(before['core'])) or 'T' in seen, 1)
            os.kill(before['core'], signal.SIGCONT)
        client.finish()
        judge(client)
        others_live(before, server)
        assert 'core_condemned' not in server.log() and 'core_died' not in server.log()


def a_hung_collective_is_found_and_only_its_rank_replaced():
    with started() as server, Client(server.endpoint) as client:
        for count, collective in enumerate([1, 5], 1):
            before = server.children()
            inject(server, 'hang-collective', '--rank', 1, '--after', 6, '--collective', collective)
            load(client, prefix=f'{count}-')
            client.finish()
            judge(client, f'{count}-')
            client.streams.clear()
            fault = told(server, count, rank='1', cause='stuck')
            # Looks that a busy machine delays do not count against the rank, so the bound is on a machine that has time.
            assert float(fault['detect_ms']) <= 1000 * PATIENCE, fault
            others_live(before, server, 'rank1')


def a_busy_machine_kills_nobody():
    """Loaded steps while spinning processes take every core twice; ALTHING_BUSY_STEPS=10000 is the long form."""
    steps = int(os.environ.get('ALTHING_BUSY_STEPS', '400'))
    spinners = [subprocess.Popen([sys.executable, '-c', 'while True: pass']) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        with started() as server, Client(server.endpoint) as client:
            before, done, rounds = server.children(), 0, 0
            while done < steps:
                rounds += 1
                client.streams.clear()
                load(client, 16, f'{rounds}-')
                client.finish(300)
                judge(client, f'{rounds}-')
                done = status(server, 0)['steps']
            others_live(before, server)
            assert not faults_of(server), faults_of(server)
            assert all(spinner.poll() is None for spinner in spinners), 'the machine was not busy'
            print(f'  {done} steps, p99 {status(server, 0)["step_p99_us"] / 1000:.0f} ms, nobody died')
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def slow_ranks_and_late_messages_kill_nobody():
    with started() as server, Client(server.endpoint) as client:
        before = server.children()
        for count, words in enumerate([['slow', '--rank', 1, '--ms', 60, '--steps', 10], ['delay', '--rank', 0, '--ms', 150],
                                       ['delay', '--core', '--ms', 150]]):
            inject(server, *words)
            load(client, prefix=f'{count}-')
            client.finish()
            judge(client, f'{count}-')
            client.streams.clear()
        others_live(before, server)
        assert not faults_of(server)
        assert status(server, 0)['faults'] + status(server, 1)['faults'] == 12


def a_rank_that_hangs_between_steps_is_started_again():
    with started() as server, Client(server.endpoint) as client:
        before = server.children()
        load(client, count=4)
        while sum(len(stream.tokens) for stream in client.streams.values()) < 8:
            client.step()
        # Long before it would wake by itself.
        inject(server, 'slow', '--rank', 1, '--ms', 600_000)
        client.finish(30)
        judge(client)
        wait_for('the rank is another process', lambda: server.children().get('rank1') not in (None, before['rank1']))
        others_live(before, server, 'rank1')
        assert 'its executor does not answer' in server.log()


def a_lost_message_costs_a_membership_and_no_process():
    with started() as server, Client(server.endpoint) as client:
        before = server.children()
        for count, words in enumerate([['--rank', 1], ['--rank', 0], ['--core']], 1):
            rank = 1 if words[-1] == 1 else 0
            happened = status(server, rank)['faults']
            inject(server, 'drop', *words, '--after', 6)
            load(client, prefix=f'{count}-')
            client.finish(20)
            judge(client, f'{count}-')
            client.streams.clear()
            assert status(server, rank)['faults'] == happened + 1, 'nothing was dropped'
            told(server, count, rank='none', cause='stalled')
            others_live(before, server)


def a_rank_without_memory_is_replaced():
    with started() as server, Client(server.endpoint) as client:
        before = server.children()
        inject(server, 'oom', '--rank', 1, '--after', 6)
        load(client)
        client.finish()
        judge(client)
        told(server, 1, rank='1', cause='exit')
        assert 'bad_alloc' in server.log() or 'signal 6' in server.log(), 'memory did not run out'
        others_live(before, server, 'rank1')


def nan_ends_its_request_and_leaves_its_neighbours_alone():
    contain_nan()


def nan_of_one_dp_group_leaves_both_groups_neighbours_alone():
    contain_nan('--dp', 2, '--tp', 1, '--ep', 2)


def contain_nan(*layout):
    with started(*layout) as server, Client(server.endpoint) as client:
        before = server.children()
        for count, (kind, rank) in enumerate([('nan', 1), ('corrupt-kv', 1), ('nan', 0), ('corrupt-kv', 0)]):
            happened = status(server, rank)['faults']
            inject(server, kind, '--rank', rank, '--after', 8)
            load(client, prefix=f'{count}-')
            client.finish()
            ends = [stream.end for stream in client.streams.values()]
            wrong = [end for end in ends if end['type'] != 'done']
            assert len(wrong) == 1 and wrong[0]['error']['code'] == 'nonfinite', ends
            for key, stream in client.streams.items():
                whole = CASES[int(key.split('-')[1])]['completion_ids']
                assert stream.tokens == (whole if stream.end['type'] == 'done' else whole[:len(stream.tokens)]), key
            assert status(server, rank)['faults'] == happened + 1
            wait_for('quarantined pages are scrubbed and free', lambda: server.metric('althing_kv_blocks_used') == 0)
            # The same pages again, by a request that would see what is left in them.
            client.streams.clear()
            load(client, prefix=f'again-{count}-')
            client.finish()
            judge(client, f'again-{count}-')
            client.streams.clear()
        others_live(before, server)
        assert server.metric('althing_faults_total') == 0


def two_deaths_at_once_and_a_death_during_recovery():
    with started() as server, Client(server.endpoint) as client:
        inject(server, 'kill', '--rank', 0, '--after', 5)
        inject(server, 'kill', '--rank', 1, '--after', 5)
        load(client)
        client.finish()
        judge(client)
        wait_for('both are told', lambda: len(faults_of(server)) == 2)
        assert {fault['rank'] for fault in faults_of(server)} == {'0', '1'}, faults_of(server)
        client.streams.clear()
        # The second dies while the first one's replacement has not joined yet.
        before = server.children()
        load(client, prefix='b')
        wait_for('tokens', lambda: client.step() or any(stream.tokens for stream in client.streams.values()))
        inject(server, 'kill', '--rank', 0)
        wait_for('it is started again', lambda: server.children().get('rank0') not in (None, before['rank0']), 5)
        inject(server, 'kill', '--rank', 1)
        client.finish()
        judge(client, 'b')
        wait_for('both are told', lambda: len(faults_of(server)) == 4)
        others_live(before, server, 'rank0', 'rank1')


def ready_says_recovering_while_a_rank_is_missing():
    with started() as server, Client(server.endpoint) as client:
        epoch, seen, over = server.epoch(), set(), threading.Event()

        def watch():
            while not over.is_set():
                code, body = server.get('/ready')
                if code:
                    seen.add((code, json.loads(body)['state']))

        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            load(client, 4)
            inject(server, 'stop', '--rank', 1)
            wait_for('ready under a new membership', lambda: server.ready(epoch), 5)
        finally:
            over.set()
            watcher.join()
        assert (503, 'recovering') in seen and (200, 'ready') in seen, seen
        assert all((code == 200) == (state == 'ready') for code, state in seen), seen
        client.finish()
        judge(client)


def a_drain_during_a_recovery_finishes_its_streams():
    with started() as server, Client(server.endpoint) as client:
        load(client)
        wait_for('tokens', lambda: client.step() or any(stream.tokens for stream in client.streams.values()))
        inject(server, 'kill', '--rank', 1)
        server.process.send_signal(signal.SIGTERM)
        client.finish()
        judge(client)
        assert server.process.wait(10 * PATIENCE) == 0, server.process.returncode
        assert 'rank_died rank=1' in server.log(), 'nobody died'


def an_only_rank_that_always_dies_ends_the_server_with_its_code():
    server = Server('--allow-faults', '--restarts-max', '3', ranks=1)
    try:
        for _ in range(8):
            before = server.children().get('rank0')
            if server.process.poll() is not None:
                break
            subprocess.run([str(BINARY), 'inject', 'kill', '--rank', '0', '--ready-file', str(server.ready_file)], capture_output=True, timeout=20)
            wait_for('the death is seen', lambda: server.process.poll() is not None or server.children().get('rank0') not in (None, before), 5)
        assert server.process.wait(5 * PATIENCE) == 7, server.process.returncode
        assert re.search(r'too many ranks died more often than --restarts-max 3 within a minute', server.log()), server.log()
    finally:
        server.process.kill()
        server.process.wait()
        server.folder.cleanup()


def mixed_requests_survive():
    """Prefill, decode, tools and sampled streams in one batch, and a rank killed, stopped and hung in it."""
    tool = [{'name': 'add', 'description': 'Adds.', 'parameters': {'type': 'object', 'properties': {'a': {'type': 'number'}}}}]

    def submit(client, prefix):
        long_text = ' '.join(CASES[0]['messages'][-1]['content'] if isinstance(CASES[0]['messages'][-1]['content'], str) else 'word' for _ in range(40))
        load(client, 4, prefix + 'd')
        client.submit(prefix + 'tools', [{'role': 'user', 'content': 'What is 2 and 3?'}], tools=tool, sampling={'completion_tokens_max': 40})
        client.submit(prefix + 'long', [{'role': 'user', 'content': long_text}], sampling={'completion_tokens_max': 24})
        for seed in range(3):
            client.submit(f'{prefix}seed{seed}', [{'role': 'user', 'content': 'Tell me a story.'}],
                          sampling={'completion_tokens_max': 40, 'temperature': 1.0, 'top_p': 0.9, 'seed': str(seed)})

    with started() as server, Client(server.endpoint) as client:
        submit(client, 'a')
        client.finish()
        whole = {key[1:]: (stream.tokens, stream.text, stream.end['type']) for key, stream in client.streams.items()}
        assert all(end == 'done' for _, _, end in whole.values()), whole
        assert len({tuple(whole[f'seed{seed}'][0]) for seed in range(3)}) == 3, 'seeds make no difference'
        for prefix, words in (('b', ['kill', '--rank', 1, '--after', 4, '--collective', 2]), ('c', ['stop', '--rank', 0, '--after', 1]),
                              ('e', ['hang-collective', '--rank', 1, '--after', 7])):
            client.streams.clear()
            inject(server, *words)
            submit(client, prefix)
            client.finish()
            for key, stream in client.streams.items():
                assert (stream.tokens, stream.text, stream.end['type']) == whole[key[1:]], (words, key)
        wait_for('three faults are told', lambda: len(faults_of(server)) == 3)


if __name__ == '__main__':
    main(without_the_flag_nothing_can_be_injected, wrong_targets_are_refused_and_harm_nobody,
         a_socket_with_a_path_is_for_its_user_only_and_goes_with_the_server, a_killed_server_leaves_nothing_behind_and_a_living_one_keeps_its_socket,
         a_rank_that_is_left_out_is_told_from_one_that_never_was, a_killed_rank_is_seen_within_200_ms,
         a_stopped_rank_is_killed_within_half_a_second_and_never_returns, a_short_stop_is_no_death,
         a_stopped_core_is_replaced_within_half_a_second_and_its_streams_go_on, a_short_stop_of_the_core_is_no_death,
         a_hung_collective_is_found_and_only_its_rank_replaced, a_busy_machine_kills_nobody, slow_ranks_and_late_messages_kill_nobody,
         a_rank_that_hangs_between_steps_is_started_again,
         a_lost_message_costs_a_membership_and_no_process, a_rank_without_memory_is_replaced,
         nan_ends_its_request_and_leaves_its_neighbours_alone, nan_of_one_dp_group_leaves_both_groups_neighbours_alone,
         two_deaths_at_once_and_a_death_during_recovery, ready_says_recovering_while_a_rank_is_missing, a_drain_during_a_recovery_finishes_its_streams,
         an_only_rank_that_always_dies_ends_the_server_with_its_code, mixed_requests_survive)
