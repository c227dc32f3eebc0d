#!/usr/bin/env python3
"""Clients that vanish without a word, at every stage of a request: their network swallows everything, or their machine is gone. Within a stated time their requests
are cancelled and the KV cache is back at its baseline, while a neighbour gets every token. The control loses a client that has nothing open: nobody notices."""
import re
import subprocess
import sys
import time

from harness import BINARY, PATIENCE, Client, Proxy, Server, conversations, main, wait_for

CASE = conversations(1)[0]
FOREVER = {'completion_tokens_max': 1500, 'ignore_stop': True}
SILENCE_MS = 3000
# A ZeroMQ heartbeat a second with 3 s to be answered, or the silence above; then 5 s in which the client may come back; then a step that is on its way.
BOUND_SECONDS = (4 + 5 + 1.5) * PATIENCE
STEP_MS = 100  # so slow that nothing ends by itself before the bound


def slow_down(server):
    """Every step takes its time: without this an answer would be complete before anybody is missed."""
    subprocess.run([BINARY, 'inject', 'slow', '--rank', '0', '--ms', str(STEP_MS), '--steps', '100000', '--ready-file', server.ready_file], check=True,
                   capture_output=True, timeout=30)


def cancelled(server):
    return len(re.findall(r'request_finished.*the client went away', server.log()))


def open_requests(server):
    return server.metric('althing_requests_running') + server.metric('althing_requests_waiting')


def prefill(client):
    """Many chunks; gone before its first token."""
    ids = [token % 900 + 10 for token in range(1900)]
    client.submit('gone', prompt_tokens=ids, sampling={'completion_tokens_max': 140, 'ignore_stop': True})
    wait_for('accepted', lambda: client.step() or client.streams['gone'].accepted)
    assert not client.streams['gone'].tokens, 'its prefill was over already'


def first_token(client):
    client.submit('gone', CASE['messages'], sampling=FOREVER)
    wait_for('a token', lambda: client.step() or client.streams['gone'].tokens)


def decode(client):
    client.submit('gone', CASE['messages'], sampling=FOREVER)
    wait_for('tokens', lambda: client.step() or len(client.streams['gone'].tokens) > 40)


def three_choices(client):
    client.submit('gone', CASE['messages'], sampling={**FOREVER, 'n': 3, 'temperature': 1.0, 'seed': 5})
    wait_for('tokens of all choices', lambda: client.step() or
             len(client.streams['gone'].choices) == 3 and all(len(choice.tokens) > 5 for choice in client.streams['gone'].choices))


def waiting_for_credit(client):
    """All is computed soon; what is left is text that its reader must ask for."""
    client.submit('gone', CASE['messages'], sampling={'completion_tokens_max': 40, 'ignore_stop': True}, credit=1)
    wait_for('a token', lambda: client.step() or client.streams['gone'].tokens)


def vanish(stage, leave, lost=1):
    """One client leaves in the middle of `stage`; returns the seconds until nothing of it is left."""
    with Server('--allow-faults', '--client-silence-ms', SILENCE_MS) as server, Proxy(server.endpoint) as road, Client(server.endpoint) as neighbour:
        neighbour.submit('whole', CASE['messages'], sampling={'completion_tokens_max': 60, 'ignore_stop': True})
        neighbour.finish()
        wait_for('nothing is open', lambda: open_requests(server) == 0 and server.metric('althing_kv_blocks_used') == 0)
        slow_down(server)
        client = Client(road.endpoint)
        stage(client)
        neighbour.submit('split', CASE['messages'], sampling={'completion_tokens_max': 60, 'ignore_stop': True})
        before, children = cancelled(server), server.children()
        leave(road)
        gone = time.monotonic()
        while cancelled(server) < before + lost:
            assert time.monotonic() - gone < BOUND_SECONDS, (cancelled(server), open_requests(server), server.metric('althing_kv_blocks_used'))
            neighbour.step(0.05)
        seconds = time.monotonic() - gone
        neighbour.finish()
        assert neighbour.streams['split'].outcome() == neighbour.streams['whole'].outcome()
        wait_for('the KV cache is at its baseline', lambda: server.metric('althing_kv_blocks_used') == 0 and open_requests(server) == 0, 2)
        assert server.children() == children, 'somebody died of it'
        neighbour.submit('after', CASE['messages'], sampling={'completion_tokens_max': 4})
        neighbour.finish()
        assert neighbour.streams['after'].end['type'] == 'done'
        client.close()
        print(f'  {stage.__name__}, road {leave.__name__}: cancelled after {seconds:.1f} s (bound {BOUND_SECONDS:.1f} s)')


def a_network_that_swallows_everything():
    for stage in (prefill, first_token, decode, three_choices):
        lost = 3 if stage is three_choices else 1
        vanish(stage, Proxy.freeze, lost)


def a_peer_that_is_gone():
    for stage in (prefill, decode, three_choices):
        lost = 3 if stage is three_choices else 1
        vanish(stage, Proxy.kill, lost)


def a_reader_that_vanishes_while_text_waits_for_credit():
    """Nothing is computed for it any more, so nothing can be cancelled at the scheduler; its stream and its session must go all the same."""
    with Server('--client-silence-ms', SILENCE_MS) as server, Proxy(server.endpoint) as road, Client(server.endpoint) as neighbour:
        client = Client(road.endpoint)
        waiting_for_credit(client)
        road.freeze()
        gone = time.monotonic()
        assert server.metric('althing_sessions') == 2

        def alone():
            neighbour.step(0.02)
            return server.metric('althing_sessions') == 1
        wait_for('its session is gone', alone, SILENCE_MS / 1000 + 2)
        wait_for('pages are back', lambda: server.metric('althing_kv_blocks_used') == 0)
        print(f'  session gone after {time.monotonic() - gone:.1f} s')
        # Who it was can say hello again, and hears within the same connection that the stream was given up, or is told so as not_found later.
        road.thaw()
        client.close()


def a_client_with_nothing_open_is_missed_by_nobody():
    """The control: the wrong one vanishes, in the same two ways, and no stream of anybody is touched."""
    with Server('--allow-faults', '--client-silence-ms', SILENCE_MS) as server, Proxy(server.endpoint) as road, Proxy(server.endpoint) as other:
        idle, busy = Client(road.endpoint), Client(other.endpoint)
        slow_down(server)
        busy.submit('mine', CASE['messages'], sampling={'completion_tokens_max': 120, 'ignore_stop': True})
        wait_for('tokens', lambda: busy.step() or busy.streams['mine'].tokens)
        road.freeze()
        busy.finish()
        assert busy.streams['mine'].end['type'] == 'done' and len(busy.streams['mine'].tokens) == 120, busy.streams['mine'].end
        assert cancelled(server) == 0
        idle.close()
        busy.close()


def a_client_that_comes_back_in_time_loses_nothing():
    """The other control: the same frozen road, thawed before the time is over."""
    with Server('--allow-faults', '--client-silence-ms', SILENCE_MS) as server, Proxy(server.endpoint) as road, Client(road.endpoint) as client:
        slow_down(server)
        client.submit('mine', CASE['messages'], sampling={'completion_tokens_max': 60, 'ignore_stop': True})
        wait_for('tokens', lambda: client.step() or client.streams['mine'].tokens)
        road.freeze()
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            client.step(0.05)
        road.thaw()
        client.finish()
        assert client.streams['mine'].end['type'] == 'done' and len(client.streams['mine'].tokens) == 60, client.streams['mine'].end
        assert cancelled(server) == 0


if __name__ == '__main__':
    main(a_network_that_swallows_everything, a_peer_that_is_gone, a_reader_that_vanishes_while_text_waits_for_credit,
         a_client_with_nothing_open_is_missed_by_nobody, a_client_that_comes_back_in_time_loses_nothing)
