#!/usr/bin/env python3
"""Who floods the server waits behind himself: another tenant has its share at once, urgent requests go first, and a full server says when to come back."""
import os
import signal
import time

from harness import Client, Server, conversations, main, wait_for

PROMPT = conversations(1)[0]['messages']


def sampling(tokens, seed=7):
    return {'completion_tokens_max': tokens, 'ignore_stop': True, 'temperature': 1.0, 'seed': str(seed)}


def ended(client, key, code=None):
    end = client.streams[key].end
    assert end is not None, key
    assert (end['type'] == 'done') if code is None else (end['type'] == 'error' and end['error']['code'] == code), end
    return end


def one_request_beside_the_flood_of_another_tenant_is_served_at_once():
    with Server('--rows', 4, '--sequences', 300) as server, Client(server.endpoint) as flood, Client(server.endpoint) as other:
        for i in range(120):
            flood.submit(f'f{i}', PROMPT, tenant='flood', sampling=sampling(150, i % 3))
        wait_for('rows are taken', lambda: flood.step() or sum(len(stream.tokens) > 2 for stream in flood.streams.values()) >= 4)
        began = time.monotonic()
        other.submit('one', PROMPT, tenant='other', sampling=sampling(40))
        other.finish()
        took = time.monotonic() - began
        ended(other, 'one')
        assert server.metric('althing_preemptions_for_share_total') >= 1
        flood.finish(300)
        whole = time.monotonic() - began
        print(f'    {took:.2f} s beside a flood that takes {whole:.1f} s')
        assert took < whole / 4
        preempted = [ended(flood, key)['usage']['preemptions'] for key in flood.streams]
        # Whoever gave way says what it would have said.
        for seed in range(3):
            texts = {tuple(stream.tokens) for key, stream in flood.streams.items() if int(key[1:]) % 3 == seed}
            assert len(texts) == 1, f'seed {seed}: {len(texts)} different answers'
        assert sum(preempted) >= 1


def urgent_requests_of_a_tenant_go_first_also_after_the_cores_death():
    with Server('--rows', 1) as server, Client(server.endpoint) as client:
        order = []
        client.submit('running', PROMPT, sampling=sampling(120))
        wait_for('it runs', lambda: client.step() or client.streams['running'].tokens)
        for key, priority in (('low', -4), ('plain', 0), ('high', 4), ('tier', 2)):
            client.submit(key, PROMPT, priority=priority, sampling=sampling(5))
        wait_for('all wait', lambda: client.step() or all(stream.accepted for stream in client.streams.values()))
        os.kill(server.children()['core'], signal.SIGKILL)
        while client.open():
            client.step()
            order += [key for key, stream in client.streams.items() if stream.end and key not in order]
        # The one that ran waits again, as if it had come before all others of its priority.
        assert order in (['running', 'high', 'tier', 'plain', 'low'], ['high', 'tier', 'running', 'plain', 'low']), order
        for key in order:
            ended(client, key)


def a_priority_out_of_range_is_refused_by_name():
    with Server() as server, Client(server.endpoint) as client:
        for key, priority in (('over', 5), ('under', -5), ('half', 0.5)):
            client.submit(key, PROMPT, priority=priority)
        client.finish()
        for key in client.streams:
            assert ended(client, key, 'invalid_argument')['error']['field'] == 'priority'


def a_full_server_says_when_to_come_back():
    with Server('--rows', 1, '--sequences', 8, '--tenant-sequences', 4) as server, Client(server.endpoint) as client:
        for i in range(4):
            client.submit(f'a{i}', PROMPT, tenant='a', sampling=sampling(30))
        client.submit('too much', PROMPT, tenant='a', sampling=sampling(5))
        wait_for('it is refused', lambda: client.step() or client.streams['too much'].end)
        assert 'of this tenant' in ended(client, 'too much', 'busy')['error']['message']
        client.submit('b', PROMPT, tenant='b', sampling=sampling(5))
        wait_for('another tenant is served', lambda: client.step() or client.streams['b'].end)
        ended(client, 'b')
        wait_for('some have ended', lambda: client.step() or sum(stream.end is not None for stream in client.streams.values()) >= 5)
        for i in range(10):
            client.submit(f'c{i}', PROMPT, tenant=f'c{i}', sampling=sampling(200))
        wait_for('some are refused', lambda: client.step() or any(client.streams[f'c{i}'].end for i in range(10)))
        refused = [stream.end for key, stream in client.streams.items() if key.startswith('c') and stream.end]
        assert all(end['error']['code'] == 'busy' and 50 <= end['error']['retry_after_ms'] <= 60_000 for end in refused), refused


if __name__ == '__main__':
    main(one_request_beside_the_flood_of_another_tenant_is_served_at_once, urgent_requests_of_a_tenant_go_first_also_after_the_cores_death,
         a_priority_out_of_range_is_refused_by_name, a_full_server_says_when_to_come_back)
