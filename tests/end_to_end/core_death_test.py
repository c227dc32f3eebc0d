#!/usr/bin/env python3
"""The core dies and no client notices: whatever the moment, every stream goes on without a gap and ends as it would have, byte for byte, in both encodings; ranks
are not restarted, and the server keeps its name. Each test proves that the core was killed, and one shows that killing somebody else looks different."""
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

from harness import BINARY, PATIENCE, ROOT, Client, Server, alive, ask, conversations, main, wait_for

CASES = conversations(400)
CALLS = [case for case in CASES if 'to=functions.' in case['completion_text']][:8]
AGAIN_SECONDS = 1.0 * PATIENCE
LONG = {'completion_tokens_max': 150, 'ignore_stop': True}


def pump(clients, until, what, seconds=60):
    deadline = time.monotonic() + seconds * PATIENCE
    while not until():
        assert time.monotonic() < deadline, f'not within {seconds} s: {what}'
        for client in clients:
            if client.open():
                client.step(0.005)


def finish(clients):
    pump(clients, lambda: not any(client.open() for client in clients), 'every stream ends')


def outcomes(clients, prefix):
    return [{key[len(prefix):]: stream.outcome() for key, stream in client.streams.items() if key.startswith(prefix)} for client in clients]


class Killed:
    """kill -9 of the core, and the proof of it."""

    def __init__(self, server):
        self.server, self.children, self.epoch = server, server.children(), server.epoch()
        self.deaths = server.log().count('core_died')
        self.recoveries = server.log().count('core_recovered')
        self.at = time.monotonic()
        os.kill(self.children['core'], signal.SIGKILL)

    def prove(self, ranks_kept=True):
        wait_for('the killed core is gone', lambda: not alive(self.children['core']), 2)
        wait_for('another core', lambda: self.server.children().get('core') not in (None, self.children['core']), 5)
        died = wait_for('the death is logged', lambda: self.server.log().count('core_died') > self.deaths and self.server.log(), 5)
        assert 'killed by signal 9' in [line for line in died.splitlines() if 'core_died' in line][-1]
        wait_for('the recovery is logged', lambda: self.server.log().count('core_recovered') == self.recoveries + 1, 10)
        wait_for('ready under a new membership', lambda: self.server.ready(self.epoch), 5)
        assert self.server.metric('althing_core_restarts_total') == self.deaths + 1
        assert self.server.metric('althing_core_recovery_seconds_count') == 1
        now = self.server.children()
        assert not ranks_kept or all(now[role] == pid for role, pid in self.children.items() if role != 'core'), (self.children, now)

    def phases(self):
        line = [line for line in self.server.log().splitlines() if 'core_recovered' in line][-1]
        return {name: float(value) for name, value in re.findall(r'(\w+)=([\d.]+)', line)}


    def print_phases(self, what):
        """Returns the seconds from the kill to the first token that no core had drawn before."""
        phases = self.phases()
        detect = phases['noticed'] - self.at
        print(f'  {what}: {detect + phases["seconds"]:.3f} s from kill -9 to the next token: noticed {1000 * detect:.0f} ms, core starts {phases["start_ms"]:.0f} ms, '
              f'rebuilds {phases["streams"]:.0f} streams {phases["rebuild_ms"]:.0f} ms, ranks join {phases["ranks_ms"]:.0f} ms, '
              f'first token {phases["first_token_ms"]:.0f} ms')
        return detect + phases['seconds']


def split_run(submit, ripe, what, count=3, flags=(), ranks=2):
    """The same requests twice, by `count` clients at once: once whole, once with a dead core in the moment when ripe(streams) says so."""
    with Server(*flags, ranks=ranks) as server:
        clients = [Client(server.endpoint) for _ in range(count)]
        instance = clients[0].instance
        for client in clients:
            submit(client, 'whole-')
        finish(clients)
        for client in clients:
            submit(client, 'split-')
        streams = [stream for client in clients for key, stream in client.streams.items() if key.startswith('split-')]
        pump(clients, lambda: ripe(streams), what)
        unfinished = sum(stream.end is None for stream in streams)
        assert unfinished, 'it was over before the kill'
        killed = Killed(server)
        finish(clients)
        killed.prove()
        # Requests are counted, not their choices; some may have ended, or were not accepted, without a word to their clients yet.
        counted = server.metric('althing_requests_accepted_total')
        assert killed.phases()['streams'] <= counted <= unfinished, (killed.phases(), counted, unfinished)
        assert server.metric('althing_requests_total') == counted, 'each of them has ended once'
        assert outcomes(clients, 'split-') == outcomes(clients, 'whole-')
        assert {client.instance for client in clients} == {instance}, 'the server has another name'
        for client in clients:
            client.close()
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        killed.print_phases(what)


def submit_chats(client, prefix):
    for number in range(6):
        ask(client, f'{prefix}{number}', CASES[number])


def submit_sampled(client, prefix):
    for number in range(4):
        client.submit(f'{prefix}{number}', CASES[number]['messages'], sampling={'temperature': 1.0, 'seed': 11 + number, **LONG})


def submit_prompts(client, prefix):
    """Long prompts as ids: their prefill takes many steps."""
    ids = [token for case in CASES for token in case['completion_ids']]
    for number in range(2):
        client.submit(f'{prefix}{number}', prompt_tokens=ids[number * 7:number * 7 + 1000], sampling={'completion_tokens_max': 24, 'ignore_stop': True})


def submit_calls(client, prefix):
    for number, case in enumerate(CALLS):
        ask(client, f'{prefix}{number}', case)


def killed_in_prefill():
    split_run(submit_prompts, lambda streams: all(stream.accepted for stream in streams) and not any(stream.tokens for stream in streams), 'in prefill',
              flags=('--prefix-sharing', 'off'))  # else the first round leaves no prefill to the second


def killed_at_the_first_token():
    split_run(submit_sampled, lambda streams: any(stream.sequence == 1 for stream in streams), 'at the first token')


def killed_in_decode():
    split_run(submit_chats, lambda streams: sum(len(stream.tokens) for stream in streams) > 100, 'in decode')


def killed_in_decode_of_sampled_streams():
    split_run(submit_sampled, lambda streams: sum(len(stream.tokens) for stream in streams) > 300, 'in decode, sampled')


def killed_in_a_tool_call():
    def calling(streams):
        return any(stream.end is None and stream.story and stream.story[-1][0].startswith('functions.') and stream.story[-1][1] for stream in streams)
    assert len(CALLS) == 8
    split_run(submit_calls, calling, 'in a tool call')


def killed_after_the_end_before_the_client_has_read():
    with Server() as server, Client(server.endpoint) as client:
        submit_chats(client, 'whole-')
        client.finish()
        submit_chats(client, 'split-')
        # This client reads nothing now; what has reached its socket may be the whole or a part.
        wait_for('every request ended', lambda: server.metric('althing_requests_total') == 12, 30)
        assert len(client.open()) == 6
        killed = Killed(server)
        wait_for('another core', lambda: server.children().get('core') not in (None, killed.children['core']), 5)
        client.finish()
        killed.prove()
        assert killed.phases()['streams'] == 0 and killed.phases()['finished'] >= 6, killed.phases()
        assert outcomes([client], 'split-') == outcomes([client], 'whole-')
        # A stream that had ended can be read once more, from any place.
        client.streams['split-0'].__init__()
        client.streams['split-0'].accepted = True
        client.send('resume', request_id='split-0', last_sequence=0)
        client.finish()
        assert client.streams['split-0'].tokens == client.streams['whole-0'].tokens


def streaming_again_within_a_second():
    """The best of three, because other programs share the machine; two short streams, because what must be computed again takes its time too."""
    def once():
        with Server() as server, Client(server.endpoint) as client:
            for number in range(2):
                client.submit(f'{number}', CASES[number]['messages'], sampling={'completion_tokens_max': 400, 'ignore_stop': True})
            pump([client], lambda: all(stream.tokens for stream in client.streams.values()), 'in decode')
            killed = Killed(server)
            client.finish()
            killed.prove()
            seconds, back = killed.print_phases('two streams'), client.returned - killed.at
            print(f'  the client was back {back:.3f} s after kill -9')
            return max(seconds, back)
    best = min(once() for _ in range(3))
    assert best <= AGAIN_SECONDS, best


def clients_in_decode(server):
    """Three clients that have had all their answers once, undisturbed, and are in the middle of the same ones again."""
    clients = [Client(server.endpoint) for _ in range(3)]
    for client in clients:
        submit_sampled(client, 'whole-')
    finish(clients)
    for client in clients:
        submit_sampled(client, 'split-')
    pump(clients, lambda: any(len(stream.tokens) > 20 for stream in clients[0].streams.values() if not stream.end), 'in decode')
    return clients


def killed_twice_in_a_row():
    with Server(ranks=2) as server:
        clients = clients_in_decode(server)
        first = server.children()
        os.kill(first['core'], signal.SIGKILL)
        second = wait_for('a second core', lambda: (server.children().get('core') or first['core']) != first['core'] and server.children()['core'], 5)
        os.kill(second, signal.SIGKILL)
        finish(clients)
        third = server.children()
        assert third['core'] not in (first['core'], second) and server.log().count('core_died') == 2
        assert all(third[role] == first[role] for role in ('rank0', 'rank1'))
        assert server.metric('althing_core_restarts_total') == 2
        assert outcomes(clients, 'split-') == outcomes(clients, 'whole-')
        for client in clients:
            client.close()


def killed_again_and_again():
    """Six deaths while the same streams run, at moments that a seed chooses."""
    seed = int.from_bytes(os.urandom(4), 'little')
    dice = random.Random(seed)
    print(f'  seed {seed}')
    with Server('--restarts-max', '100', ranks=2) as server:
        clients = [Client(server.endpoint) for _ in range(3)]
        for prefix in ('whole-', 'split-'):
            for client in clients:
                submit_chats(client, prefix)
                submit_sampled(client, prefix)
            if prefix == 'whole-':
                finish(clients)
        deaths = 0
        while deaths < 6 and any(client.open() for client in clients):
            tokens = sum(len(stream.tokens) for client in clients for stream in client.streams.values())
            goal = tokens + dice.randrange(1, 400)
            pump(clients, lambda: sum(len(stream.tokens) for client in clients for stream in client.streams.values()) >= goal or
                 not any(client.open() for client in clients), 'tokens')
            core = server.children().get('core')
            if core:
                os.kill(core, signal.SIGKILL)
                deaths += 1
                wait_for('another core', lambda: server.children().get('core') not in (None, core), 5)
        finish(clients)
        assert deaths >= 3 and server.log().count('core_died') == deaths, deaths
        assert outcomes(clients, 'split-') == outcomes(clients, 'whole-')
        for client in clients:
            client.close()


def killed_while_a_rank_recovers():
    with Server(ranks=2) as server:
        clients = clients_in_decode(server)
        rank = server.children()['rank1']
        os.kill(rank, signal.SIGKILL)
        wait_for('the rank is gone', lambda: not alive(rank), 2)
        killed = Killed(server)
        finish(clients)
        killed.prove(ranks_kept=False)
        now = server.children()
        assert now['rank1'] != rank and now['rank0'] == killed.children['rank0']
        assert outcomes(clients, 'split-') == outcomes(clients, 'whole-')
        for client in clients:
            client.close()


def killed_while_the_server_drains():
    def submit(client, prefix):
        for number in range(4):
            client.submit(f'{prefix}{number}', CASES[number]['messages'],
                          sampling={'temperature': 1.0, 'seed': 11 + number, 'completion_tokens_max': 900, 'ignore_stop': True})
    with Server('--drain-seconds', '60') as server, Client(server.endpoint) as client:
        submit(client, 'whole-')
        client.finish()
        submit(client, 'split-')
        pump([client], lambda: any(len(client.streams[key].tokens) > 20 for key in client.open()), 'in decode')
        core = server.children()['core']
        server.process.send_signal(signal.SIGTERM)
        wait_for('it drains', lambda: 'drain' in server.log(), 5)
        os.kill(core, signal.SIGKILL)
        client.finish()
        assert outcomes([client], 'split-') == outcomes([client], 'whole-')
        code = server.process.wait(30 * PATIENCE)
        assert code == 0, (code, server.log()[-1500:])
        assert server.log().count('core_died') == 1


def killing_somebody_else_is_no_core_death():
    """The control: the same run and the same checks, with another victim."""
    bystander = subprocess.Popen(['sleep', '600'])
    with Server() as server, Client(server.endpoint) as client:
        submit_chats(client, 'whole-')
        client.finish()
        submit_chats(client, 'split-')
        pump([client], lambda: any(client.streams[key].tokens for key in client.open()), 'in decode')
        children = server.children()
        bystander.kill()
        assert bystander.wait() == -signal.SIGKILL
        client.finish()
        assert outcomes([client], 'split-') == outcomes([client], 'whole-')
        assert server.children() == children and 'core_died' not in server.log() and 'core_recovered' not in server.log()
        assert server.metric('althing_core_restarts_total') == 0 and server.metric('althing_core_recovery_seconds_count') == 0


def readiness_says_recovering_and_never_starting():
    with Server() as server, Client(server.endpoint) as client:
        submit_sampled(client, 'split-')
        pump([client], lambda: any(client.streams[key].tokens for key in client.open()), 'in decode')
        killed = Killed(server)
        seen = []
        while not (seen and seen[-1][0] == 200 and json.loads(seen[-1][1])['epoch'] > killed.epoch):
            seen.append(server.get('/ready'))
            assert time.monotonic() - killed.at < 10 * PATIENCE, seen[-1]
        words = {json.loads(body)['state'] for code, body in seen if code == 503}
        print(f'  {len(seen)} answers: {sum(code == 0 for code, _ in seen)} none, then {words or "nothing"}, then ready')
        assert words <= {'recovering'}, words
        client.finish()


def a_client_that_never_comes_back_costs_nothing_after_the_window():
    with Server() as server, Client(server.endpoint) as watcher:
        with Client(server.endpoint) as client:
            for number in range(4):
                client.submit(f'{number}', CASES[number]['messages'], sampling={'completion_tokens_max': 1800, 'ignore_stop': True})
            pump([client], lambda: any(stream.tokens for stream in client.streams.values()), 'in decode')
        killed = Killed(server)
        killed.prove()
        assert server.metric('althing_requests_running') + server.metric('althing_requests_waiting') > 0, 'they were not taken over'
        wait_for('they are cancelled', lambda: server.metric('althing_requests_running') + server.metric('althing_requests_waiting') == 0, 12)
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        watcher.submit('after', CASES[0]['messages'])
        watcher.finish()
        assert watcher.streams['after'].end['type'] == 'done'


def the_cpp_client_goes_on_in_capnp():
    questions = [case['messages'][-1]['content'] for case in CASES if len(case['messages']) == 2 and case['messages'][-1]['role'] == 'user'][:12]

    def chats(server):
        return [subprocess.Popen([BINARY, 'chat', '--endpoint', server.endpoint, '--colour', 'never', '--reasoning', 'high', '--temperature', '1', '--seed', '5', '--once',
                                  question], stdout=subprocess.PIPE, stderr=subprocess.PIPE) for question in questions]
    with Server() as server, Client(server.endpoint) as load:
        whole = [chat.communicate(timeout=60 * PATIENCE)[0] for chat in chats(server)]
        for number in range(24):
            load.submit(f'{number}', CASES[number]['messages'], sampling={'temperature': 1.0, 'seed': number, **LONG})
        split = chats(server)
        pump([load], lambda: server.metric('althing_sessions') >= 8 and any(chat.poll() is None for chat in split) and
             server.log().count('prompt_tokens') > 60, 'chats run')
        running, loading = sum(chat.poll() is None for chat in split), len(load.open())
        killed = Killed(server)
        load.finish()
        said = [chat.communicate(timeout=60 * PATIENCE) for chat in split]
        killed.prove()
        chatting = int(killed.phases()['streams']) - loading
        print(f'  {running} of {len(split)} chats ran when the core died, at least {chatting} of them in mid-stream')
        assert chatting > 0, 'no chat was open'
        assert [chat.returncode for chat in split] == [0] * len(split), said
        assert [out for out, _ in said] == whole


def the_python_client_goes_on_in_json():
    command = [sys.executable, ROOT / 'examples/python/many.py', '--sockets', '3', '--requests', '24', '--return-tokens', '--max-tokens', '150', '--input', '-']
    prompts = ''.join(json.dumps({'messages': case['messages']}) + '\n' for case in CASES[:24])

    def answers(text):
        lines = [json.loads(line) for line in text.splitlines()]
        return {line['request']: (line.get('tokens'), line.get('messages'), line.get('reason'), line.get('error')) for line in lines}
    with Server() as server:
        endpoint = ['--endpoint', server.endpoint]
        whole = subprocess.run([*command, *endpoint], input=prompts, capture_output=True, text=True, timeout=90 * PATIENCE)
        split = subprocess.Popen([*command, *endpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        split.stdin.write(prompts)
        split.stdin.close()
        before = server.metric('althing_generation_tokens_total')
        wait_for('it decodes', lambda: server.metric('althing_generation_tokens_total') > before + 100, 30)
        assert split.poll() is None
        killed = Killed(server)
        out, err = split.stdout.read(), split.stderr.read()
        assert split.wait(60 * PATIENCE) == 0, (out, err)
        killed.prove()
        assert killed.phases()['streams'] > 0, 'nothing was open when the core died'
        assert len(answers(out)) == 24 and all(tokens and not error for tokens, _, _, error in answers(out).values()), (out, err)
        assert answers(out) == answers(whole.stdout)


def without_a_log_streams_end_with_a_typed_error():
    with Server('--token-log-mib', '0') as server, Client(server.endpoint) as client:
        instance = client.instance
        submit_sampled(client, 'split-')
        pump([client], lambda: all(client.streams[key].accepted for key in client.open()), 'accepted')
        Killed(server)
        client.finish()
        ends = [stream.end for stream in client.streams.values()]
        assert all(end['type'] == 'done' or end['error']['code'] == 'not_found' for end in ends) and any(end['type'] == 'error' for end in ends), ends
        assert client.instance != instance


def a_full_log_refuses_and_says_so():
    with Server('--token-log-mib', '1') as server, Client(server.endpoint) as client:
        for number in range(100):
            client.submit(f'{number}', CASES[0]['messages'], sampling={'completion_tokens_max': 1500, 'ignore_stop': True})
        pump([client], lambda: all(stream.accepted or stream.end for stream in client.streams.values()), 'every answer')
        refused = [stream.end['error'] for stream in client.streams.values() if stream.end]
        assert refused and all(error['code'] == 'busy' and '--token-log-mib' in error['message'] for error in refused), refused
        assert len(client.open()) > 50
        for key in client.open():
            client.send('cancel', request_id=key)
        client.finish()
        client.submit('after', CASES[0]['messages'])
        client.finish()
        assert client.streams['after'].end['type'] == 'done', client.streams['after'].end


if __name__ == '__main__':
    main(killed_in_prefill, killed_at_the_first_token, killed_in_decode, killed_in_decode_of_sampled_streams, killed_in_a_tool_call,
         killed_after_the_end_before_the_client_has_read, streaming_again_within_a_second, killed_twice_in_a_row, killed_again_and_again, killed_while_a_rank_recovers, killed_while_the_server_drains,
         killing_somebody_else_is_no_core_death, readiness_says_recovering_and_never_starting, a_client_that_never_comes_back_costs_nothing_after_the_window,
         the_cpp_client_goes_on_in_capnp, the_python_client_goes_on_in_json, without_a_log_streams_end_with_a_typed_error, a_full_log_refuses_and_says_so)
