#!/usr/bin/env python3
"""What our own clients do when things break: the C++ one (`althing chat`, Cap'n Proto) and the Python one (JSON) go on without a gap through the death of a rank and of
the core and through a gateway that cannot be reached for three seconds, and say in one clear line, within a stated time, that a server is gone for good."""
import os
import signal
import subprocess
import sys
import time

from harness import BINARY, PATIENCE, TINY, Proxy, Server, alive, main, wait_for

AWAY_SECONDS = 3.0
# Both give a server 5 s to answer a ping, of which there is one a second; then a poll, and the end of the program.
GIVE_UP_SECONDS = 5 + 1 + 2.0 * PATIENCE
STEP_MS = 60
QUESTION = 'Tell me a story.'
CHOICES_SCRIPT = TINY.parents[1] / 'python/choices.py'
CHAT_SCRIPT = TINY.parents[1] / 'python/chat.py'


def commands(endpoint):
    """By name; each answers in 80 tokens, so slowly that there is time to break something."""
    limits = ('--temperature', '1', '--seed', '5', '--max-tokens', '80')
    return {
        'C++': [BINARY, 'chat', '--endpoint', endpoint, '--once', QUESTION, '--colour', 'never', *limits],
        'C++, three choices': [BINARY, 'chat', '--endpoint', endpoint, '--once', QUESTION, '--colour', 'never', '-n', '3', *limits],
        'Python': [sys.executable, CHAT_SCRIPT, '--endpoint', endpoint, '--temperature', '0', '--max-tokens', '80', QUESTION],
        'Python, three choices': [sys.executable, CHOICES_SCRIPT, '--endpoint', endpoint, '-n', '3', '--seed', '5', '--max-tokens', '80', QUESTION],
    }


def start(endpoint):
    return {name: subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name, command in commands(endpoint).items()}


def collect(running):
    said = {name: process.communicate(timeout=90 * PATIENCE) for name, process in running.items()}
    return {name: (running[name].returncode, out) for name, (out, _) in said.items()}, {name: err for name, (_, err) in said.items()}


def slow_down(server):
    subprocess.run([BINARY, 'inject', 'slow', '--rank', '0', '--ms', str(STEP_MS), '--steps', '100000', '--ready-file', server.ready_file], check=True,
                   capture_output=True, timeout=30)


def in_mid_stream(server, running):
    before = server.metric('althing_generation_tokens_total')
    wait_for('all of them are answered', lambda: server.metric('althing_requests_running') >= 8, 30)  # 1 + 3 + 1 + 3 sequences
    wait_for('tokens come', lambda: server.metric('althing_generation_tokens_total') > before + 40, 30)
    assert all(process.poll() is None for process in running.values()), 'somebody was done already'


def through(breakage):
    with Server('--allow-faults') as server, Proxy(server.endpoint) as road:
        whole, complaints = collect(start(road.endpoint))
        assert all(code == 0 and out.strip() for code, out in whole.values()), (whole, complaints)
        slow_down(server)
        running = start(road.endpoint)
        in_mid_stream(server, running)
        breakage(server, road)
        split, complaints = collect(running)
        assert split == whole, (split, whole, complaints)
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)


def kill(server, role):
    pid = server.children()[role]
    os.kill(pid, signal.SIGKILL)
    wait_for(f'{role} is dead', lambda: not alive(pid), 2)
    wait_for(f'{role} is there again', lambda: server.children().get(role) not in (None, pid), 5)


def a_rank_dies():
    through(lambda server, road: kill(server, 'rank1'))


def the_core_dies():
    through(lambda server, road: kill(server, 'core'))


def the_gateway_is_away_for_three_seconds():
    """No connection can be made for that long, and the ones that were are broken."""
    def away(server, road):
        road.kill()
        since, connections = time.monotonic(), server.metric('althing_sessions')
        assert connections >= 4
        while time.monotonic() - since < AWAY_SECONDS:
            assert road.process.returncode is not None
            time.sleep(0.05)  # this is the length of the fault, not a wait for something
        road.open()
    through(away)


def give_up(breakage):
    """{name: seconds from the breakage to the client's end}."""
    server = Server('--allow-faults')
    with Proxy(server.endpoint) as road:
        slow_down(server)
        running = start(road.endpoint)
        in_mid_stream(server, running)
        children = server.children()
        breakage(server, road)
        gone, seconds = time.monotonic(), {}
        while len(seconds) < len(running):
            for name, process in running.items():
                if name not in seconds and process.poll() is not None:
                    seconds[name] = time.monotonic() - gone
            assert time.monotonic() - gone < GIVE_UP_SECONDS, f'still there: {set(running) - set(seconds)}'
            time.sleep(0.01)
        ends, complaints = collect(running)
        for name, (code, _) in ends.items():
            lines = complaints[name].strip().splitlines()
            assert code not in (0, None) and code > 0, (name, code)
            assert road.endpoint in complaints[name] or 'server' in complaints[name], (name, complaints[name])
            assert 'Traceback' not in complaints[name] and lines, (name, complaints[name])
        print('  ' + ', '.join(f'{name} {value:.1f} s' for name, value in seconds.items()) + f' (bound {GIVE_UP_SECONDS:.1f} s)')
        print('  ' + next(line for line in complaints['C++'].splitlines() if line.startswith('althing:')))
        print('  ' + complaints['Python'].strip().splitlines()[-1])
        road.thaw()
        server.process.kill()
        server.process.wait()
        wait_for('no child outlives the server', lambda: not any(alive(pid) for pid in children.values()), 2)
        server.folder.cleanup()


def a_server_that_is_killed_for_good_is_named_within_the_bound():
    give_up(lambda server, road: (server.process.kill(), server.process.wait()))


def a_server_that_falls_silent_is_named_within_the_bound():
    give_up(lambda server, road: road.freeze())


def nobody_there_at_all_is_said_at_once():
    with Server() as server:
        endpoint = server.endpoint
    for name, command in commands(endpoint).items():
        began = time.monotonic()
        run = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)
        assert run.returncode > 0 and endpoint in run.stderr and 'Traceback' not in run.stderr, (name, run)
        assert time.monotonic() - began < GIVE_UP_SECONDS, name


if __name__ == '__main__':
    main(a_rank_dies, the_core_dies, the_gateway_is_away_for_three_seconds, a_server_that_is_killed_for_good_is_named_within_the_bound,
         a_server_that_falls_silent_is_named_within_the_bound, nobody_there_at_all_is_said_at_once)
