#!/usr/bin/env python3
"""KV pages survive their ranks and the core: what was lost comes back by copy, the streams are the same byte for byte, and the server says how much of each. Every
test proves that its fault happened, and the control without a mirror shows that the numbers can be others."""
import mmap
import os
import re
import signal
import subprocess
import time

from harness import BINARY, PATIENCE, Client, Server, alive, conversations, main, wait_for

CASES = conversations(400)
IDS = [token for case in CASES for token in case['completion_ids']]
PROMPT = 600


def submit(client, prefix, count=3, completion=500, prompt=PROMPT):
    for number in range(count):
        sampling = {'completion_tokens_max': completion, 'ignore_stop': True}
        if number % 2:
            sampling |= {'temperature': 1.0, 'seed': 5 + number}
        client.submit(f'{prefix}{number}', prompt_tokens=IDS[number * 11:number * 11 + prompt], sampling=sampling)


def tokens_of(client, prefix):
    streams = {key[len(prefix):]: stream for key, stream in client.streams.items() if key.startswith(prefix)}
    assert all(stream.end['type'] == 'done' for stream in streams.values()), [stream.end for stream in streams.values()]
    return {key: stream.tokens for key, stream in streams.items()}


def in_decode(client, prefix, tokens=8):
    streams = [stream for key, stream in client.streams.items() if key.startswith(prefix)]
    deadline = time.monotonic() + 60 * PATIENCE
    while not all(len(stream.tokens) >= tokens for stream in streams):
        assert time.monotonic() < deadline, 'not in decode within a minute'
        client.step(0.005)
    assert not any(stream.end for stream in streams), 'it was over before the fault'


def resumed(server, count=1):
    """{'restored_tokens': …} of the last recovery, once there were `count`."""
    lines = wait_for('the recovery is told', lambda: len(server.log().split(' streams_resumed ')) > count and server.log(), 20)
    line = [line for line in lines.splitlines() if ' streams_resumed ' in line][-1]
    return {name: int(value) for name, value in re.findall(r'(\w+)=(\d+)', line)}


def pages(server, fate):
    text = server.get('/metrics')[1]
    return sum(float(line.rsplit(' ', 1)[1]) for line in text.splitlines() if line.startswith('althing_kv_mirror_pages_total{') and f'"{fate}"' in line)


def interrupted(fault, *flags, ranks=2):
    """The same requests twice; `fault(server)` breaks the second time. Returns what the server said about it, with its metrics at the end."""
    with Server(*flags, ranks=ranks) as server, Client(server.endpoint) as client:
        submit(client, 'whole-')
        client.finish()
        submit(client, 'split-')
        in_decode(client, 'split-')
        fault(server)
        client.finish()
        assert tokens_of(client, 'split-') == tokens_of(client, 'whole-')
        told = resumed(server)
        assert told['streams'] == 3, f'the streams were over before the fault: {told}'
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        told |= {fate: pages(server, fate) for fate in ('copied', 'skipped', 'restored', 'missing', 'corrupt', 'no_room')}
        told['fault_lines'] = [line for line in server.log().splitlines() if ': fault ' in line]
        return told


def kill(role, more=None):
    def fault(server):
        victim = server.children()[role]
        if more:
            more(server)
        os.kill(victim, signal.SIGKILL)
        wait_for(f'{role} is gone', lambda: not alive(victim), 5)
        wait_for(f'another {role}', lambda: server.children().get(role) not in (None, victim), 10)
    return fault


def a_dead_rank_costs_no_prefill():
    told = interrupted(kill('rank1'))
    print(f'  {told}')
    assert told['corrupt'] == 0
    assert told['restored_tokens'] >= 3 * PROMPT * 0.9, told
    assert told['recomputed_tokens'] <= 3 * 120, told
    assert f'restored_tokens={told["restored_tokens"]} recomputed_tokens={told["recomputed_tokens"]}' in told['fault_lines'][-1], told['fault_lines']


def without_a_mirror_all_of_it_is_computed_again():
    """The control."""
    told = interrupted(kill('rank1'), '--kv-mirror-mib', '0')
    assert told['restored_tokens'] == 0 and told['copied'] == 0
    assert told['recomputed_tokens'] >= 3 * PROMPT, told


def a_dead_core_costs_no_prefill():
    told = interrupted(kill('core'))
    print(f'  {told}')
    assert told['restored_tokens'] >= 3 * PROMPT * 0.9 and told['recomputed_tokens'] <= 3 * 120, told


def groups_have_mirrors_of_their_own():
    told = interrupted(kill('rank0'), '--dp', '2')
    assert told['restored_tokens'] >= 3 * PROMPT * 0.9, told


def spoil(server, rank=1):
    """Turns over a bit in every page of one rank's mirror, through the descriptor that the supervisor holds."""
    folder = f'/proc/{server.children()[f"rank{rank}"]}/fd'
    path = next(f'{folder}/{fd}' for fd in os.listdir(folder) if 'althing-kv-mirror' in os.readlink(f'{folder}/{fd}'))
    room = int(re.search(r'kv_mirror mib=\d+ room="copies of up to (\d+) pages', server.log()).group(1))
    page_bytes = int(re.search(r'pages of (\d+) bytes', server.log()).group(1))
    begin = (64 + 32 * room + 4095) // 4096 * 4096
    with open(path, 'r+b', buffering=0) as file, mmap.mmap(file.fileno(), 0) as memory:
        changed = 0
        for slot in range(400):
            memory[begin + slot * page_bytes + 40] ^= 1
            changed += 1
    assert changed == 400


def spoilt_pages_are_found_and_computed_again():
    told = interrupted(kill('rank0', spoil))
    print(f'  {told}')
    assert told['corrupt'] > 0, told
    assert told['recomputed_tokens'] >= 3 * PROMPT * 0.9, 'nothing of what was spoilt was used'


def inject(server, *words):
    run = subprocess.run([str(BINARY), 'inject', *map(str, words), '--ready-file', str(server.ready_file)], capture_output=True, text=True, timeout=30)
    assert run.returncode == 0, run.stderr
    return run.stdout


def killed_while_pages_come_back():
    """The first step of a new membership fetches pages: the other rank dies before it, or in the collective in which ranks agree on what they found."""
    for collective in (0, 2):
        def fault(server, collective=collective):
            before = server.children()
            os.kill(before['rank1'], signal.SIGKILL)
            wait_for('rank 1 is gone', lambda: not alive(before['rank1']), 5)
            # Its epoch is over, so rank 0's next step is the first of the next one.
            inject(server, 'kill', '--rank', 0, '--after', 0, *(['--collective', collective] if collective else []))
            wait_for('rank 0 is gone', lambda: not alive(before['rank0']), 20)
            wait_for('both are back', lambda: all(server.children().get(role) not in (None, before[role]) for role in ('rank0', 'rank1')), 10)
        told = interrupted(fault, '--allow-faults')
        print(f'  collective {collective}: {told}')
        assert told['restored_tokens'] >= 3 * PROMPT * 0.9, told
        assert told['epoch'] >= 3, 'two memberships were lost'


def a_preempted_sequence_comes_back_by_copy():
    """Eight streams that fit the pool at first and outgrow it: some give way, and come back. With room for all of them nobody does."""
    with Server(ranks=1) as server, Client(server.endpoint) as client:
        submit(client, '', 8, 300, 100)
        client.finish()
        expected = tokens_of(client, '')
        assert server.metric('althing_preemptions_total') == 0
    with Server('--kv-mib', '6', '--context', '800', ranks=1) as server, Client(server.endpoint) as client:
        submit(client, '', 8, 300, 100)
        client.finish(120)
        assert tokens_of(client, '') == expected
        preemptions, restored = server.metric('althing_preemptions_total'), server.metric('althing_kv_restored_tokens_total')
        print(f'  {preemptions:.0f} preemptions, {restored:.0f} tokens restored, {server.metric("althing_kv_recomputed_tokens_total"):.0f} recomputed')
        assert preemptions > 0 and restored > 0


def a_full_mirror_is_no_fault():
    told = interrupted(kill('rank1'), '--kv-mirror-mib', '2')
    assert told['no_room'] > 0 and told['copied'] > 0, told


if __name__ == '__main__':
    main(a_dead_rank_costs_no_prefill, without_a_mirror_all_of_it_is_computed_again, a_dead_core_costs_no_prefill, groups_have_mirrors_of_their_own,
         spoilt_pages_are_found_and_computed_again, killed_while_pages_come_back, a_preempted_sequence_comes_back_by_copy, a_full_mirror_is_no_fault)
