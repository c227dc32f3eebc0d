#!/usr/bin/env python3
"""What a server says of itself while something is wrong: /ready, /live and althing_state, asked without a pause through the death of a rank and of the core. Exactly
one state at a time, both sources agree, and nobody is told ready while no request could be served. The control kills somebody who is not the server's."""
import json
import os
import re
import signal
import subprocess
import threading
import time

from harness import PATIENCE, Client, Server, alive, conversations, main, wait_for

CASE = conversations(1)[0]
STATES = {'starting', 'ready', 'silent', 'recovering', 'draining'}
LAG_SECONDS = 0.35 * PATIENCE  # how long after a death somebody may still say ready: it must be noticed first, and a question takes its time
FOREVER = {'completion_tokens_max': 1200, 'ignore_stop': True}


class Watch:
    """Every answer, with the times before and after the question."""

    def __init__(self, server):
        self.server, self.over = server, threading.Event()
        self.ready, self.live, self.metric, self.old = [], [], [], []
        self.absent, self.odd = set(), []
        self.threads = [threading.Thread(target=self.ask, args=pair) for pair in (('/ready', self.ready), ('/live', self.live), ('/metrics', self.metric))]

    def ask(self, path, answers):
        while not self.over.is_set():
            asked = time.monotonic()
            code, body = self.server.get(path)
            if code:
                answers.append((asked, time.monotonic(), code, self.state_of(path, body)))
                if path == '/ready':
                    self.look_at_ranks(json.loads(body))
                if path == '/ready' and code == 200 and json.loads(body)['epoch'] <= self.epoch:
                    self.old.append(asked)  # ready, it says, and means the membership of before

    def look_at_ranks(self, body):
        for rank in body.get('ranks', []):
            if rank['state'] == 'absent':
                self.absent.add(rank['rank'])
            # A made-up age would be longer than the server has lived.
            if (rank['state'] == 'absent') != (rank['progress_age_ms'] is None) or (rank['progress_age_ms'] or 0) > 1000 * (time.monotonic() - self.server.started):
                self.odd.append(rank)

    @staticmethod
    def state_of(path, body):
        if path == '/ready':
            return json.loads(body)['state']
        if path == '/live':
            return None
        found = dict(re.findall(r'althing_state\{state="(\w+)"\} (\d)', body))
        assert set(found) == STATES, found
        ones = [state for state, value in found.items() if value == '1']
        return ones[0] if len(ones) == 1 else f'not one state but {ones}'

    def __enter__(self):
        self.epoch = self.server.epoch()
        for thread in self.threads:
            thread.start()
        wait_for('answers', lambda: self.ready and self.metric and self.live)
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


def through(kill, expect_recovering=True):
    with Server() as server, Client(server.endpoint) as client:
        client.submit('load', CASE['messages'], sampling=FOREVER)
        wait_for('tokens', lambda: client.step() or client.streams['load'].tokens)
        with Watch(server) as watch:
            epoch = server.epoch()
            died, served = kill(server), None
            before = len(client.streams['load'].tokens)
            deadline = time.monotonic() + 15 * PATIENCE
            if expect_recovering:
                while not server.ready(epoch):
                    assert time.monotonic() < deadline, 'not ready again'
                    client.step(0.01)
                served = time.monotonic()
            wait_for('the stream goes on', lambda: client.step() or len(client.streams['load'].tokens) > before or client.streams['load'].end, 10)
        client.finish()
        watch.log = server.log()
        assert client.streams['load'].end['type'] == 'done' and len(client.streams['load'].tokens) == 1200
        return watch, died, served


def judge(watch, died, served, what, lag=LAG_SECONDS):
    said = {state for *_, state in watch.metric} | {state for *_, state in watch.ready}
    assert said <= STATES, said
    for asked, _, code, state in watch.ready:
        assert (code == 200) == (state == 'ready'), (code, state)
    lies = [asked - died for answers in (watch.ready, watch.metric) for asked, answered, _, state in answers
            if state == 'ready' and asked > died + lag and answered < served]
    assert not lies, f'ready was told {min(lies):.3f} to {max(lies):.3f} s after the death, {len(lies)} times, and it served again after {served - died:.3f} s'
    assert 'recovering' in {state for *_, state in watch.ready}, '/ready never named the recovery'
    assert 'starting' not in said, 'a server that recovers does not start'
    last = max((asked - died for asked in watch.old), default=0.0)
    assert last <= lag, f'ready under the lost membership {last:.3f} s after the death'
    print(f'  {what}: {len(watch.ready)} answers of /ready, {len(watch.metric)} of /metrics; the last untrue ready {1000 * max(0.0, last):.0f} ms after the death, '
          f'serving again after {served - died:.2f} s')


def kill(server, role):
    pid = server.children()[role]
    os.kill(pid, signal.SIGKILL)
    died = time.monotonic()
    wait_for('it is dead', lambda: not alive(pid), 2)
    return died


def a_rank_dies():
    watch, died, served = through(lambda server: kill(server, 'rank1'))
    judge(watch, died, served, 'rank')
    failed = [line for line in watch.log.splitlines() if ': step_failed ' in line]
    assert all('epoch=1 ' in line and 'next="nothing to do: a new epoch follows' in line for line in failed), failed
    assert failed, 'the survivor was in a step when the other died'
    # Whether it is ever told as absent depends on how soon it is back; what is told must be true.
    assert watch.absent <= {1} and not watch.odd, (watch.absent, watch.odd[:3])
    assert all(code == 200 for _, _, code, _ in watch.live), 'a server that recovers is alive'
    assert 'recovering' in {state for *_, state in watch.metric}, 'the metric never named the recovery'


def the_core_dies():
    """Nobody answers while there is no core; whoever answers then says recovering until ranks are there."""
    watch, died, served = through(lambda server: kill(server, 'core'))
    judge(watch, died, served, 'core')


def somebody_else_dies():
    def bystander(_):
        other = subprocess.Popen(['sleep', '600'])
        other.kill()
        assert other.wait() == -signal.SIGKILL
        return time.monotonic()
    watch, _, _ = through(bystander, expect_recovering=False)
    assert {state for *_, state in watch.ready} == {'ready'} == {state for *_, state in watch.metric}
    assert all(code == 200 for _, _, code, _ in watch.live)


def a_frozen_rank_is_never_called_ready_for_long():
    """It is found by its silence, which takes about half a second."""
    watch, died, served = through(freeze)
    judge(watch, died, served, 'frozen rank', lag=0.9 * PATIENCE)


def freeze(server):
    os.kill(server.children()['rank1'], signal.SIGSTOP)
    return time.monotonic()


if __name__ == '__main__':
    main(a_rank_dies, the_core_dies, somebody_else_dies, a_frozen_rank_is_never_called_ready_for_long)
