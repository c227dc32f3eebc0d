#!/usr/bin/env python3
"""Processes that die, freeze or go away under load: every stream ends in a done that equals its lone run or in a typed error, nothing is left behind, and the server
serves again within two seconds."""
import os
import signal
import time

from harness import PATIENCE, Client, Server, alive, ask, conversations, main, wait_for

CASES = conversations(64)
SERVING_AGAIN_SECONDS = 2.0 * PATIENCE


def start_load(client, count=64):
    for number in range(count):
        ask(client, f'{number}', CASES[number])
    while sum(1 for stream in client.streams.values() if stream.tokens) < 8:
        client.step()


def judge(client, must_all_finish):
    done = errors = 0
    for number, stream in ((int(key), stream) for key, stream in client.streams.items() if key.isdigit()):
        if stream.end['type'] == 'done':
            done += 1
            assert stream.tokens == CASES[number]['completion_ids'], f'stream {number} changed'
        else:
            errors += 1
            assert stream.end['error']['code'] in ('rank_lost', 'core_lost', 'unavailable', 'not_found'), stream.end
            assert stream.tokens == CASES[number]['completion_ids'][:len(stream.tokens)], f'stream {number} is no prefix'
    print(f'  {done} done, {errors} typed errors')
    assert not must_all_finish or errors == 0
    return done, errors


def serves_again(server, since):
    """A new client gets a whole answer; returns the seconds since the fault."""
    def answered():
        try:
            with Client(server.endpoint) as client:
                ask(client, 'again', CASES[0])
                client.finish(5)
                return client.streams['again'].tokens == CASES[0]['completion_ids']
        except AssertionError:
            return False
    wait_for('a whole answer', answered, 10)
    wait_for('ready', server.ready, 5)
    return time.monotonic() - since


def kill_under_load(role, must_all_finish):
    with Server(ranks=2) as server, Client(server.endpoint) as client:
        ask(client, 'warm', CASES[0])
        client.finish()
        before, children = server.usage(), server.children()
        start_load(client)
        victim, epoch = children[role], server.epoch()
        os.kill(victim, signal.SIGKILL)
        killed = time.monotonic()
        wait_for('the killed process is gone', lambda: not alive(victim), 2)
        wait_for(f'{role} is started again', lambda: server.children().get(role) not in (None, victim), 2)
        wait_for('ready under a new membership', lambda: server.ready(epoch), 3)
        seconds = time.monotonic() - killed
        print(f'  ready again {seconds:.2f} s after kill -9 of {role}')
        assert seconds <= SERVING_AGAIN_SECONDS, seconds
        client.finish()
        judge(client, must_all_finish)
        serves_again(server, killed)
        after = server.children()
        for other, pid in children.items():
            assert (after[other] == pid) == (other != role), f'{other} was restarted too' if other != role else 'not restarted'
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        wait_for('descriptors are back', lambda: all(now <= before[key][0] + 2 for key, (now, _) in server.usage().items()), 15)
        if PATIENCE > 1:
            return  # a sanitizer's own memory is not ours to judge
        grown = {key: kib - before[key][1] for key, (_, kib) in server.usage().items()}
        assert all(kib < 64 * 1024 for kib in grown.values()), grown


def kill_rank_0_under_load():
    kill_under_load('rank0', must_all_finish=True)


def kill_rank_1_under_load():
    kill_under_load('rank1', must_all_finish=True)


def kill_core_under_load():
    kill_under_load('core', must_all_finish=True)


def kill_supervisor_under_load():
    server = Server(ranks=2)
    with Client(server.endpoint) as client:
        start_load(client)
        children = server.children()
        assert len(children) == 3, children
        server.process.kill()
        killed = time.monotonic()
        server.process.wait()
        wait_for('every child is gone', lambda: not any(alive(pid) for pid in children.values()), 2)
        print(f'  everything gone {time.monotonic() - killed:.2f} s after kill -9 of the supervisor')
    server.folder.cleanup()


def kill_ranks_again_and_again():
    with Server('--restarts-max', '100', ranks=2) as server, Client(server.endpoint) as client:
        start_load(client)
        for round_number in range(6):
            epoch = server.epoch()
            os.kill(server.children()[f'rank{round_number % 2}'], signal.SIGKILL)
            wait_for('ready under a new membership', lambda: server.ready(epoch), 5)
        client.finish()
        judge(client, must_all_finish=True)


def kill_both_ranks_at_once():
    with Server(ranks=2) as server, Client(server.endpoint) as client:
        start_load(client)
        children = server.children()
        for role in ('rank0', 'rank1'):
            os.kill(children[role], signal.SIGKILL)
        client.finish()
        judge(client, must_all_finish=True)


def a_frozen_rank_is_replaced():
    with Server('--step-timeout-ms', '1000', ranks=2) as server, Client(server.endpoint) as client:
        start_load(client)
        frozen = server.children()['rank1']
        os.kill(frozen, signal.SIGSTOP)
        wait_for('the frozen rank is replaced', lambda: server.children().get('rank1') not in (None, frozen), 15)
        client.finish()
        judge(client, must_all_finish=True)


def deaths_until_the_end(server, role):
    deaths = 0
    while server.process.poll() is None and deaths < 10:
        pid = server.children().get(role)
        if pid and alive(pid):
            os.kill(pid, signal.SIGKILL)
            deaths += 1
            wait_for('the death is seen', lambda: server.process.poll() is not None or server.children().get(role) != pid, 5)
        elif 'rank_quarantined' in server.log():
            break
    return deaths


def too_many_deaths_end_the_server_with_its_code():
    """Of the only rank, of the core; and of one rank after the other, which alone would only be left out."""
    for role, ranks in (('rank0', 1), ('core', 2)):
        server = Server('--restarts-max', '3', ranks=ranks)
        assert deaths_until_the_end(server, role) == 4
        assert server.process.wait(5 * PATIENCE) == 7, server.process.returncode
        assert '--restarts-max' in server.log()
        server.folder.cleanup()
    server = Server('--restarts-max', '1', ranks=2)
    assert deaths_until_the_end(server, 'rank0') == 2
    wait_for('the other serves alone', lambda: server.ready() and server.metric('althing_degraded') == 1, 5)
    assert server.process.poll() is None
    for _ in range(2):
        pid = wait_for('rank1 is there', lambda: server.children().get('rank1'), 5)
        os.kill(pid, signal.SIGKILL)
        wait_for('the death is seen', lambda: server.process.poll() is not None or server.children().get('rank1') != pid, 5)
    assert server.process.wait(5 * PATIENCE) == 7, server.process.returncode
    server.folder.cleanup()


if __name__ == '__main__':
    main(kill_rank_0_under_load, kill_rank_1_under_load, kill_core_under_load, kill_supervisor_under_load, kill_ranks_again_and_again,
         kill_both_ranks_at_once, a_frozen_rank_is_replaced, too_many_deaths_end_the_server_with_its_code)
