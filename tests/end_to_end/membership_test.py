#!/usr/bin/env python3
"""Memberships other than the one that the server began with: spares, survivors that go on alone, fewer ranks with another TP, ranks that flap, and deaths
in every phase of such a change. Streams end as their lone runs do, or, where TP changed, gap-free and marked; and the full grid serves again at the end."""
import contextlib
import os
import re
import secrets
import signal
import struct
import time

from faults_test import CASES, judge, serves_again, start_load
from harness import PATIENCE, Client, Server, alive, ask, main, wait_for

GROUPS = ('--dp', '2', '--tp', '1', '--ep', '1')  # of two ranks, each of which holds the whole model
TWO_BY_TWO = ('--dp', '2', '--tp', '2', '--ep', '2')
SHRINK = ('--on-rank-loss', 'shrink')
LONG = {'completion_tokens_max': 700, 'ignore_stop': True}  # long enough for everything that happens to them to happen in their middle


def fault_lines(server):
    return [dict(re.findall(r'(\w+)=(?:"[^"]*"|(\S+))', line)) for line in server.log().splitlines() if 'supervisor: fault ' in line]


def announced(server):
    """[(epoch, by, grid, members)] so far."""
    return [(int(epoch), by, grid, [int(m) for m in members.split(',')])
            for epoch, by, grid, members in re.findall(r'epoch_announced epoch=(\d+) by=(\w+) grid=(\S+) members=(\S+)', server.log())]


def kill(server, role):
    """Proof of the fault: the process that was meant lived, and is gone."""
    pid = server.children()[role]
    assert alive(pid), role
    os.kill(pid, signal.SIGKILL)
    wait_for(f'{role} is gone', lambda: not alive(pid), 2)
    return pid


def gone_to_the_last_thread(pid):
    """Dead and not reaped yet: only then does its parent hear of it."""
    return not alive(pid) and len(os.listdir(f'/proc/{pid}/task')) == 1


def whole_again(server, members, grid_of):
    """The grid is the first one's again, every process is there, and nothing is kept for anybody."""
    wait_for('all processes are there', lambda: len(server.children()) == members + 1, 10)
    wait_for('the full grid serves', lambda: server.ready() and server.metric('althing_degraded') == 0 and announced(server)[-1][2] == grid_of, 10)
    wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)


def load_of_long_streams(client, count=6):
    """Streams that live through several memberships; every one has tokens when this returns."""
    client.streams.clear()
    name = secrets.token_hex(4)  # a request id that was used before would bring the stream of then
    for number in range(count):
        client.submit(f'{name}-{number}', prompt_tokens=[(7 * number + 3 * i) % 900 + 10 for i in range(12 + 5 * number)], sampling=LONG)
    while not all(stream.tokens for stream in client.streams.values()):
        client.step()


def results(client):
    ends = [stream.end for stream in client.streams.values() if stream.end['type'] != 'done']
    assert not ends, ends
    return [stream.tokens for stream in client.streams.values()], [stream.end.get('layout_changed', False) for stream in client.streams.values()]


@contextlib.contextmanager
def loaded(server, count):
    """Many short streams by a client of their own, under way while the block runs; all must end as their lone runs do."""
    with Client(server.endpoint) as client:
        start_load(client, count)
        yield
        client.finish(120)
        assert judge(client, must_all_finish=True) == (count, 0)
        assert not any(stream.end.get('layout_changed') for stream in client.streams.values()), 'bits are the same, and nothing is to be marked'


def lone_run(*flags, ranks):
    with Server(*flags, ranks=ranks) as server, Client(server.endpoint) as client:
        load_of_long_streams(client)
        client.finish(120)
        return results(client)[0]


def a_spare_takes_over_and_its_own_death_costs_no_epoch():
    with Server('--spares', '1', ranks=2) as server:
        wait_for('the spare is loaded', lambda: server.metric('althing_spares') == 1)
        grid = announced(server)[-1][2]
        # The wrong target: a spare dies under load, and no stream, epoch or other process notices.
        with loaded(server, 16):
            children, epoch = server.children(), server.epoch()
            spare = kill(server, 'rank2')
            wait_for('a new spare', lambda: server.children().get('rank2') not in (None, spare) and server.metric('althing_spares') == 1)
        after = server.children()
        assert server.epoch() == epoch and all((after[role] == pid) == (role != 'rank2') for role, pid in children.items()), (children, after)
        assert 'spare_died' in server.log() and not fault_lines(server)
        # A rank dies: the spare is in its place at once, and what comes back in the background is the next spare.
        with loaded(server, 64):
            victim = kill(server, 'rank1')
        wait_for('the fault is told', lambda: fault_lines(server))
        fault = fault_lines(server)[-1]
        assert (fault['rank'], fault['recovered_by']) == ('1', 'spare'), fault
        assert announced(server)[-1][1:] == ('spare', grid, [0, 2]), announced(server)
        assert server.metric('althing_faults_total{cause="exit",recovered_by="spare"}') == 1
        wait_for('the spare of then is back', lambda: server.children().get('rank1') not in (None, victim) and server.metric('althing_spares') == 1)
        epoch = server.epoch()
        whole_again(server, 3, grid)
        assert server.epoch() == epoch, 'a spare that comes back is no reason for an epoch'
        print(f'  total {fault["total_ms"]} ms')


def survivors_with_the_whole_model_go_on_and_grow_again():
    with Server(*GROUPS, ranks=2) as server:
        grid = announced(server)[-1][2]
        with loaded(server, 64):
            kill(server, 'rank0')
        whole_again(server, 2, grid)
        kinds = [(by, layout, members) for _, by, layout, members in announced(server)]
        assert ('replica', '1:1:1:1:-', [1]) in kinds, kinds
        assert kinds[0] == ('start', grid, [0, 1]) and kinds[-1] == ('grow', grid, [0, 1]), kinds
        assert server.metric('althing_recoveries_total') == 1, 'one rank was lost; that the server grew again is no recovery'
        log = server.log()
        assert 0 <= log.find(' streams_resumed epoch=2 ') < log.find('epoch_announced epoch=3 by=grow'), 'it grew before its streams had gone on'
        assert 'epoch_failed epoch=2' not in log, 'growth is no failure'
        assert fault_lines(server)[-1]['recovered_by'] == 'replica', fault_lines(server)
        serves_again(server, time.monotonic())


def mirror_headers(server, role='rank0'):
    """(layout, identity, page bytes) in each mirror's header, by place: whose layout it has."""
    found = []
    for place in range(2):
        path = f'/proc/{server.children()[role]}/fd/{8 + place}'  # where ranks inherit them
        assert 'althing-kv-mirror' in os.readlink(path), path
        with open(path, 'rb') as file:
            _, _, _, identity, page_bytes, laid_out = struct.unpack('<6Q', file.read(48))
        found.append((laid_out, identity, page_bytes))
    return found


def who_comes_back_leaves_mirrors_alone_until_it_has_its_place():
    """Rank 0 dies, and member 1 serves alone, as rank 0 of a smaller grid. The new member 0 makes itself ready to be rank 0 of the full grid, whose mirror is the
    one that member 1 is using. While the supervisor sleeps it gets no place, so it must change nothing there; when it has its place, the mirror is its."""
    with Server(*SHRINK, '--restarts-max', '100', ranks=2) as server, Client(server.endpoint) as client:
        grid, full = announced(server)[-1][2], mirror_headers(server)
        assert len(full) == 2 and full[0][2] > 0, full
        load_of_long_streams(client)
        victim = kill(server, 'rank0')
        wait_for('member 1 makes itself into rank 0', lambda: re.search(r'rank_built rank=0 grid=1:', server.log()))
        server.process.send_signal(signal.SIGSTOP)
        try:
            def taken():
                first = mirror_headers(server, 'rank1')[0]
                return first[0] != 0 and first[2] != full[0][2]
            wait_for('the mirror of place 0 has the layout of member 1, who serves in it', lambda: client.step(0.001) or taken())
            alone = mirror_headers(server, 'rank1')
            assert len(announced(server)) == 2, (full, alone, announced(server))
            back = server.children()['rank0']
            assert back != victim

            def says_loaded():
                with open(f'/proc/{back}/maps') as maps:
                    mapped = 'althing-kv-mirror' in maps.read()
                # Its actors are there only when all of it has loaded.
                return mapped and any('caf' in name for name in thread_names(back))
            wait_for('member 0 is ready for its place', says_loaded, 20)
            assert mirror_headers(server, 'rank1') == alone, 'it has laid out a mirror that another member uses'
        finally:
            server.process.send_signal(signal.SIGCONT)
        client.finish(120)
        whole_again(server, 2, grid)
        assert mirror_headers(server) == full, 'the control: with its place it has the mirror'


def thread_names(pid):
    names = []
    for task in os.listdir(f'/proc/{pid}/task'):
        with contextlib.suppress(OSError), open(f'/proc/{pid}/task/{task}/comm') as comm:
            names.append(comm.read().strip())
    return names


def without_the_whole_model_survivors_wait():
    """The wrong target of the case before: here the dead rank alone holds half of the experts."""
    with Server('--dp', '2', '--tp', '1', '--ep', '2', ranks=2) as server:
        with loaded(server, 64):
            kill(server, 'rank0')
        assert [by for _, by, _, _ in announced(server)][-1] == 'respawn', announced(server)
        assert fault_lines(server)[-1]['recovered_by'] == 'respawn', fault_lines(server)


def fewer_ranks_serve_with_another_tp_and_mark_what_lived_through_it():
    want = lone_run(ranks=2)
    with Server(*SHRINK, ranks=2) as server, Client(server.endpoint) as client:
        grid = announced(server)[-1][2]
        load_of_long_streams(client)
        kill(server, 'rank0')
        client.finish(120)
        got, marked = results(client)
        assert [len(tokens) for tokens in got] == [len(tokens) for tokens in want]
        assert all(marked), marked
        wait_for('the fault is told', lambda: fault_lines(server))
        assert fault_lines(server)[-1]['recovered_by'] == 'shrink', fault_lines(server)
        whole_again(server, 2, grid)
        # Back in the full grid everything is as it was, and nothing is marked.
        load_of_long_streams(client)
        client.finish(120)
        assert results(client) == (want, [False] * len(want))


def the_mark_survives_the_core():
    with Server(*SHRINK, '--restarts-max', '100', ranks=2) as server, Client(server.endpoint) as client:
        load_of_long_streams(client, 2)
        kill(server, 'rank1')
        # What the client reads may still be of before; that streams have gone on is in the log.
        wait_for('streams go on in a smaller grid', lambda: client.step(0.01) or 'streams_resumed epoch=2 streams=2' in server.log())
        assert 'supervisor: degraded epoch=2' in server.log()
        kill(server, 'core')
        client.finish(120)
        tokens, marked = results(client)
        assert all(len(one) == LONG['completion_tokens_max'] for one in tokens) and all(marked), marked


def a_request_that_only_the_full_grid_can_hold_ends_typed_and_others_live():
    with Server(*SHRINK, '--kv-mib', '5', ranks=2) as server, Client(server.endpoint) as client:
        wait_for('ready', server.ready)
        client.submit('large', prompt_tokens=[11] * 1200, sampling={'completion_tokens_max': 800, 'ignore_stop': True})
        client.submit('small', prompt_tokens=[12] * 20, sampling=LONG)
        while not all(stream.tokens for stream in client.streams.values()):
            client.step()
        kill(server, 'rank0')
        client.finish(120)
        large, small = client.streams['large'].end, client.streams['small'].end
        assert large['type'] == 'error' and large['error']['code'] == 'too_large', large
        numbers = [int(number) for number in re.findall(r'\d+', large['error']['message'])]
        assert len(numbers) == 3 and numbers[0] < numbers[2] == 2000 <= numbers[1], large
        assert small['type'] == 'done' and len(client.streams['small'].tokens) == LONG['completion_tokens_max'], small
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)


def a_rank_that_flaps_is_left_out_for_a_while():
    with Server('--restarts-max', '2', '--quarantine-seconds', '2', ranks=2) as server, Client(server.endpoint) as client:
        grid = announced(server)[-1][2]
        client.submit('one', prompt_tokens=list(range(20, 40)), sampling=LONG)
        for death in range(3):
            epoch = server.epoch()
            kill(server, 'rank1')
            if death < 2:
                wait_for('ready again', lambda: server.ready(epoch), 5)
        wait_for('one rank serves', lambda: server.ready() and server.metric('althing_degraded') == 1, 5)
        assert server.metric('althing_quarantined') == 1 and 'rank1' not in server.children()
        assert re.search(r'rank_quarantined member=1 deaths=3 restarts_max=2 seconds=2', server.log()), server.log()[-2000:]
        quarantined = time.monotonic()
        with Client(server.endpoint) as other:
            ask(other, 'meanwhile', CASES[0])
            other.finish()
            assert other.streams['meanwhile'].end['type'] == 'done'
        client.finish()
        assert client.streams['one'].end['type'] == 'done' and len(client.streams['one'].tokens) == LONG['completion_tokens_max']
        whole_again(server, 2, grid)
        assert time.monotonic() - quarantined > 1, 'it came back before its time'
        assert server.metric('althing_quarantined') == 0 and server.process.poll() is None


def two_deaths_at_once():
    """One of each group of two, so that nobody has a whole group; then a whole group, so that the other goes on."""
    with Server(*TWO_BY_TWO, ranks=4) as server:
        for roles, by in ((('rank0', 'rank3'), 'respawn'), (('rank0', 'rank1'), 'replica')):
            grid = announced(server)[-1][2]
            with loaded(server, 32):
                children, told = server.children(), len(announced(server))
                # While the supervisor sleeps, so that it learns of both in one moment.
                server.process.send_signal(signal.SIGSTOP)
                for role in roles:
                    os.kill(children[role], signal.SIGKILL)
                wait_for('both are gone', lambda: all(gone_to_the_last_thread(children[role]) for role in roles), 5)
                server.process.send_signal(signal.SIGCONT)
            whole_again(server, 4, grid)
            after = server.children()
            assert all((after[role] == pid) == (role not in roles) for role, pid in children.items()), (children, after)
            assert announced(server)[told][1] == by, announced(server)[told:]


# What is logged when a change of membership has come so far; the next death is then.
PHASES = {'announce': r'epoch_announced epoch={epoch} ', 'rebuild': r'rank_built', 'join': r'rank_ready rank=\d+ epoch={epoch}',
          'serve': r'supervisor: ready epoch={epoch} '}


def die_in_phase(flags, phase, growing, bits_equal):
    """One rank dies; when the change that follows (or the growth after it) is in `phase`, a rank that takes part in it dies as well."""
    with Server(*flags, '--restarts-max', '100', ranks=4) as server, Client(server.endpoint) as client:
        grid = announced(server)[-1][2]
        load_of_long_streams(client)
        epoch = announced(server)[-1][0]
        kill(server, 'rank3')

        def target():
            later = [layout for layout in announced(server) if layout[0] > epoch and (layout[2] == grid) == growing]
            return later[0] if later else None
        def pumped(condition):
            client.step(0.001)
            return condition()
        wait_for('the change is announced', lambda: pumped(target), 10)
        begun = server.log().index(f'epoch_announced epoch={target()[0]} ')
        pattern = re.compile(PHASES[phase].format(epoch=target()[0]))
        wait_for(f'phase {phase}', lambda: pumped(lambda: pattern.search(server.log(), begun)), 10)
        member = target()[3][-1]
        victim = kill(server, f'rank{member}')
        client.finish(120)
        tokens, marked = results(client)
        assert all(len(one) == LONG['completion_tokens_max'] for one in tokens)
        whole_again(server, 4, grid)
        assert server.children()[f'rank{member}'] != victim
        died = re.findall(r'(?:rank_died rank=\d+|spare_died) member=(\d+)', server.log())
        assert sorted(died) == sorted(['3', str(member)]), died
        if bits_equal:
            assert not any(marked), marked
        return tokens


def deaths_in_every_phase(flags, bits_equal):
    want = lone_run(*flags, ranks=4) if bits_equal else None
    for growing in (False, True):
        for phase in PHASES:
            tokens = die_in_phase(flags, phase, growing, bits_equal)
            assert not bits_equal or tokens == want, (phase, growing)
            print(f'  {"grow" if growing else "shrink"}, {phase}: whole again', flush=True)


def deaths_in_every_phase_of_a_replica_takeover():
    deaths_in_every_phase(('--dp', '4', '--tp', '1', '--ep', '1'), bits_equal=True)


def deaths_in_every_phase_of_a_shrink():
    deaths_in_every_phase((*SHRINK, '--dp', '1', '--tp', '4'), bits_equal=False)


def a_spare_dies_while_it_takes_over():
    with Server('--spares', '1', '--restarts-max', '100', ranks=2) as server:
        wait_for('the spare is loaded', lambda: server.metric('althing_spares') == 1)
        grid = announced(server)[-1][2]
        for phase in PHASES:
            with loaded(server, 16):
                epoch, members = announced(server)[-1][0], announced(server)[-1][3]
                spare = next(member for member in range(3) if member not in members)
                kill(server, f'rank{members[0]}')
                wait_for('the takeover is announced', lambda: announced(server)[-1][0] > epoch)
                after = announced(server)[-1]
                assert spare in after[3] and after[1] == 'spare', after
                begun = server.log().index(f'epoch_announced epoch={after[0]} ')
                wait_for(f'phase {phase}', lambda: re.search(PHASES[phase].format(epoch=after[0]), server.log()[begun:]), 10)
                kill(server, f'rank{spare}')
            wait_for('a spare is there again', lambda: server.metric('althing_spares') == 1, 10)
            whole_again(server, 3, grid)


if __name__ == '__main__':
    main(a_spare_takes_over_and_its_own_death_costs_no_epoch, survivors_with_the_whole_model_go_on_and_grow_again,
         who_comes_back_leaves_mirrors_alone_until_it_has_its_place,
         without_the_whole_model_survivors_wait, fewer_ranks_serve_with_another_tp_and_mark_what_lived_through_it, the_mark_survives_the_core,
         a_request_that_only_the_full_grid_can_hold_ends_typed_and_others_live, a_rank_that_flaps_is_left_out_for_a_while, two_deaths_at_once,
         deaths_in_every_phase_of_a_replica_takeover, deaths_in_every_phase_of_a_shrink, a_spare_dies_while_it_takes_over)
