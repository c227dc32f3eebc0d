#!/usr/bin/env python3
"""SIGTERM, whenever it comes: idle, under load, while a rank or the core recovers, and twice. Readiness goes at once, new requests are refused by name, running ones
end as they would have, and a second signal ends everything within two seconds."""
import json
import os
import signal
import threading
import time

from harness import PATIENCE, Client, Server, alive, ask, conversations, main, wait_for

CASES = conversations(16)
UNREADY_SECONDS = 0.1 * PATIENCE
SECOND_SIGNAL_SECONDS = 2.0 * PATIENCE
FOREVER = {'completion_tokens_max': 1500, 'ignore_stop': True}


class Readiness:
    """Asks /ready without a pause in a thread of its own, and keeps each answer with the time at which it was asked for."""

    def __init__(self, server):
        self.server, self.answers, self.over = server, [], threading.Event()
        self.thread = threading.Thread(target=self.watch)

    def watch(self):
        while not self.over.is_set():
            asked = time.monotonic()
            code, body = self.server.get('/ready')
            self.answers.append((asked, code, json.loads(body)['state'] if code else None))

    def __enter__(self):
        self.thread.start()
        wait_for('an answer', lambda: self.answers)
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def unready_after(self, signalled):
        """Seconds from the signal to the last question that was still answered with ready."""
        late = [asked - signalled for asked, code, _ in self.answers if code == 200 and asked > signalled]
        assert any(code == 200 for asked, code, _ in self.answers if asked <= signalled), 'it was never ready'
        return max(late, default=0.0)

    def states(self):
        return [state for _, _, state in self.answers if state]


def terminate(server):
    server.process.send_signal(signal.SIGTERM)
    return time.monotonic()


def judge(client, count):
    for number in range(count):
        stream = client.streams[f'{number}']
        assert stream.end['type'] == 'done' and stream.tokens == CASES[number]['completion_ids'], (number, stream.end)


def idle():
    with Server() as server:
        children = server.children()
        with Readiness(server) as readiness:
            signalled = terminate(server)
            assert server.process.wait(5 * PATIENCE) == 0
            ended = time.monotonic() - signalled
        late = readiness.unready_after(signalled)
        print(f'  not ready after {1000 * late:.0f} ms, ended after {ended:.2f} s')
        assert late <= UNREADY_SECONDS, late
        assert not any(alive(pid) for pid in children.values())


def under_load_running_requests_end_and_new_ones_are_refused():
    with Server() as server, Client(server.endpoint) as client, Client(server.endpoint) as late:
        children = server.children()
        for number in range(8):
            ask(client, f'{number}', CASES[number])
        client.submit('long', CASES[8]['messages'], sampling={'completion_tokens_max': 600, 'ignore_stop': True})
        wait_for('tokens', lambda: client.step() or all(stream.tokens for stream in client.streams.values()))
        with Readiness(server) as readiness:
            signalled = terminate(server)
            wait_for('draining is told', lambda: 'draining' in readiness.states(), 2)
            late.submit('new', CASES[0]['messages'])
            late.submit('three', CASES[0]['messages'], sampling={'n': 3})
            while late.open():
                late.step()
            for key in ('new', 'three'):
                error = late.streams[key].end['error']
                assert error['code'] == 'draining' and 'another' in error['message'], error
            assert client.open(), 'the load was over too soon'
            assert server.get('/metrics')[1].count('althing_state{state="draining"} 1') == 1
            client.finish()
        unready = readiness.unready_after(signalled)
        print(f'  not ready after {1000 * unready:.0f} ms')
        assert unready <= UNREADY_SECONDS, unready
        judge(client, 8)
        assert len(client.streams['long'].tokens) == 600
        assert server.process.wait(10 * PATIENCE) == 0
        assert not any(alive(pid) for pid in children.values())


def drain_in_recovery(role):
    with Server() as server, Client(server.endpoint) as client:
        for number in range(8):
            ask(client, f'{number}', CASES[number])
        wait_for('tokens', lambda: client.step() or all(stream.tokens for stream in client.streams.values()))
        victim = server.children()[role]
        os.kill(victim, signal.SIGKILL)
        wait_for('it is dead', lambda: not alive(victim), 2)
        with Readiness(server) as readiness:
            terminate(server)
            client.finish()
        # Before the signal is heard the rank may be back already.
        states = readiness.states()
        assert 'draining' in states and 'ready' not in states[states.index('draining'):], states
        judge(client, 8)
        assert server.process.wait(15 * PATIENCE) == 0, server.log()[-1500:]
        assert f'{"core" if role == "core" else "rank"}_died' in server.log(), 'nobody died'


def while_a_rank_recovers():
    drain_in_recovery('rank1')


def while_the_core_recovers():
    drain_in_recovery('core')


def twice(stop_core=False, recover=False):
    with Server() as server, Client(server.endpoint) as client:
        for number in range(4):
            client.submit(f'{number}', CASES[number]['messages'], sampling=FOREVER)
        wait_for('tokens', lambda: client.step() or all(stream.tokens for stream in client.streams.values()))
        children = server.children()
        if recover:
            os.kill(children['rank1'], signal.SIGKILL)
        if stop_core:
            os.kill(children['core'], signal.SIGSTOP)
        terminate(server)
        wait_for('the first signal is heard', lambda: server.log().count('signal number=15') == 1, 2)
        assert server.process.poll() is None and client.open(), 'it was over too soon'
        again = terminate(server)
        code = server.process.wait(10 * PATIENCE)
        seconds = time.monotonic() - again
        print(f'  ended {seconds:.2f} s after the second signal, with {code}')
        assert seconds <= SECOND_SIGNAL_SECONDS, seconds
        assert code == 0, code
        assert not any(alive(pid) for pid in children.values())


def a_second_signal_ends_it_at_once():
    twice()


def a_second_signal_does_not_wait_for_a_core_that_hangs():
    twice(stop_core=True)


def a_second_signal_during_a_recovery():
    twice(recover=True)


def another_signal_drains_nothing():
    """The control: another signal, to the server and to a rank: it serves on, is ready all the time, and takes new requests."""
    with Server() as server, Client(server.endpoint) as client:
        children = server.children()
        with Readiness(server) as readiness:
            os.kill(children['rank0'], signal.SIGWINCH)
            os.kill(server.process.pid, signal.SIGWINCH)
            ask(client, '0', CASES[0])
            client.finish()
        judge(client, 1)
        assert set(readiness.states()) == {'ready'}, set(readiness.states())
        assert server.children() == children


if __name__ == '__main__':
    main(idle, under_load_running_requests_end_and_new_ones_are_refused, while_a_rank_recovers, while_the_core_recovers,
         a_second_signal_ends_it_at_once, a_second_signal_does_not_wait_for_a_core_that_hangs, a_second_signal_during_a_recovery,
         another_signal_drains_nothing)
