#!/usr/bin/env python3
"""A server with keys: who is listed comes in and nobody else, whatever it speaks; lists change while it serves, revoked keys are cut, cores die, and what listens where is looked up."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import time

from harness import BINARY, PATIENCE, ROOT, TINY, Client, Server, alive, ask, conversations, main, wait_for, zmq

if zmq:
    from zmq.utils.monitor import recv_monitor_message

CASE = conversations(1)[0]
FOREVER = {'completion_tokens_max': 1800, 'ignore_stop': True}
EXAMPLE_PUBLIC, EXAMPLE_SECRET = b'Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID', b'D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs'
FLOOD_SECONDS = float(os.environ.get('ALTHING_FLOOD_SECONDS', '4'))


def run(*words, code=0):
    result = subprocess.run([str(word) for word in (BINARY, *words)], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)
    assert result.returncode in (code if isinstance(code, tuple) else (code,)), (words, result)
    return result.stdout + result.stderr


class Keys:
    """A folder with a server's key and a list, both made by `althing keys`."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix='althing-keys-')
        self.list = self.path('allowed.txt')
        self.new('server', 'server')

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def path(self, name):
        return pathlib.Path(self.folder.name) / name

    def new(self, name, role='client'):
        run('keys', 'new', '--file', self.path(name), '--role', role)

    def allow(self, name, *flags):
        run('keys', 'allow', self.path(name + '.pub'), '--list', self.list, *flags)

    def client(self, name, role='client', *flags):
        """A new key that is allowed, as Client takes it."""
        self.new(name, role)
        self.allow(name, *flags)
        return self.of(name)

    def of(self, name):
        secret = self.path(name + '.key').read_text().splitlines()[-1].split()[1].encode()
        return self.public('server'), self.public(name), secret

    def public(self, name):
        return run('keys', 'show', self.path(name + '.pub')).strip().encode()

    def flags(self):
        return '--curve-key', self.path('server.key'), '--curve-allow', self.list

    def secrets(self):
        return [path.read_text().splitlines()[-1].split()[1] for path in pathlib.Path(self.folder.name).glob('*.key')]


def serves(server, keys):
    with Client(server.endpoint, keys=keys) as client:
        ask(client, 'ok', CASE)
        client.finish()
        assert client.streams['ok'].tokens == CASE['completion_ids'], client.streams['ok'].end


def handshake(endpoint, set_up, seconds=1.5):
    """What a socket sees of its first handshakes: succeeded, denied (an answer), mismatch (another mechanism), silent (broken off, or nothing)."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.linger = 0
    set_up(socket)
    monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    socket.connect(endpoint)
    seen = 'silent'
    if monitor.poll(seconds * 1000 * PATIENCE if seconds > 2 else seconds * 1000):
        event = recv_monitor_message(monitor)
        seen = {zmq.EVENT_HANDSHAKE_SUCCEEDED: 'succeeded', zmq.EVENT_HANDSHAKE_FAILED_AUTH: 'denied', zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL: 'mismatch'}[event['event']]
    context.destroy(linger=0)
    return seen


def curve(keys):
    def set_up(socket):
        socket.curve_serverkey, socket.curve_publickey, socket.curve_secretkey = keys
    return set_up


def listed_keys_come_in_and_nobody_else():
    with Keys() as keys:
        alice = keys.client('alice')
        with Server(*keys.flags()) as server:
            endpoint = server.endpoint
            def plain(socket):
                socket.plain_username, socket.plain_password = b'alice', b'alice'
            assert handshake(endpoint, curve(alice), 10) == 'succeeded'
            serves(server, alice)
            stranger = zmq.curve_keypair()
            assert handshake(endpoint, curve((alice[0], *stranger)), 10) == 'denied'
            # Which of the two sides hangs up first is a race; libzmq tries again until it has read that the mechanisms differ.
            assert handshake(endpoint, lambda socket: None, 2) in ('mismatch', 'silent'), 'a peer without encryption'
            assert handshake(endpoint, plain, 2) in ('mismatch', 'silent')
            assert handshake(endpoint, curve((zmq.curve_keypair()[0], *alice[1:]))) == 'silent', 'the key of another server'
            assert handshake(endpoint, curve((alice[0], EXAMPLE_PUBLIC, EXAMPLE_SECRET)), 10) == 'denied'
            counted = dict(re.findall(r'althing_zap_requests_total\{result="(\w+)"\} (\d+)', server.get('/metrics')[1]))
            assert int(counted['accepted']) >= 3 and int(counted['denied']) == 3 and counted['malformed'] == '0', counted  # one of each is the server's own try
            serves(server, alice)


def commands_and_examples_are_let_in_and_say_why_not():
    with Keys() as keys:
        keys.client('alice')
        keys.new('bob')
        with Server(*keys.flags(), ranks=1) as server:
            door = ('--endpoint', server.endpoint, '--server-key', keys.path('server.pub'))
            question = next(message['content'] for message in CASE['messages'] if message['role'] == 'user')
            said = run('chat', *door, '--key', keys.path('alice.key'), '--once', question)
            assert said.strip(), said
            assert '"layer"' in run('trace', *door, '--key', keys.path('alice.key'), question, '--json', '--max-tokens', '2')
            assert 'does not let this key in' in run('chat', *door, '--key', keys.path('bob.key'), '--once', question, code=1)
            assert '--server-key' in run('chat', '--endpoint', server.endpoint, '--once', question, code=(1, 3))  # which of the two sides hangs up first is a race
            assert 'breaks the handshake off' in run('chat', '--endpoint', server.endpoint, '--server-key', keys.path('bob.pub'), '--key', keys.path('alice.key'), '--once', question, code=1)
            assert 'add --key' in run('chat', *door, '--once', question, code=2)
            assert 'secret' in run('chat', '--endpoint', server.endpoint, '--server-key', keys.path('server.key'), '--key', keys.path('alice.key'), '--once', question, code=2)
            example = [sys.executable, str(ROOT / 'examples/python/chat.py'), '--endpoint', server.endpoint]
            for flags, code in ((['--server-key', keys.path('server.pub'), '--key', keys.path('alice.key')], 0), (['--server-key', keys.path('server.pub'), '--key', keys.path('bob.key')], 1),
                                ([], 1)):
                result = subprocess.run([*example, *map(str, flags), question], capture_output=True, text=True, timeout=60 * PATIENCE)
                assert result.returncode == code and (code == 0 or ('denied' if flags else '--server-key') in result.stderr), (flags, result)


def the_cpp_example_is_let_in_by_key():
    example = BINARY.parent / 'tests/examples/example_chat'
    if not example.exists():
        raise unittest.SkipTest(f'{example} is not built')
    with Keys() as keys:
        keys.client('alice')
        keys.new('bob')
        with Server(*keys.flags(), ranks=1) as server:
            def chat(*flags):
                return subprocess.run([str(word) for word in (example, server.endpoint, *flags, 'What is 12 + 30?')], capture_output=True, text=True, timeout=60 * PATIENCE)
            door = ('--server-key', keys.path('server.pub'), '--key')
            let_in = chat(*door, keys.path('alice.key'))
            assert let_in.returncode == 0 and '42' in let_in.stdout, let_in
            for flags, code, says in (((*door, keys.path('bob.key')), 1, 'chat: '), ((), 1, 'chat: '), (door[:2], 2, 'usage: '), ((*door, keys.path('nobody.key')), 1, 'nobody.key')):
                refused = chat(*flags)
                assert refused.returncode == code and says in refused.stderr and not refused.stdout, (flags, refused)


def the_page_of_a_server_with_keys_chats():
    with Keys() as keys:
        keys.list.touch(0o600)
        with Server(*keys.flags(), ranks=1) as server:
            import http.client
            connection = http.client.HTTPConnection(server.metrics_address, timeout=30 * PATIENCE)
            body = json.dumps({'tab': 'a-tab-of-ours', 'messages': CASE['messages'][-1:], 'sampling': {'completion_tokens_max': 8}})
            connection.request('POST', '/chat', body, {'Content-Type': 'application/json', 'Origin': f'http://{server.metrics_address}'})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            assert '"done"' in answer.read().decode()


def a_revoked_key_is_told_and_cut():
    with Keys() as keys:
        alice, bob = keys.client('alice'), keys.client('bob')
        with Server(*keys.flags()) as server, Client(server.endpoint, keys=alice) as revoked, Client(server.endpoint, keys=bob) as other:
            silent = zmq.Context()  # connected, and has said nothing
            quiet = silent.socket(zmq.DEALER)
            quiet.linger = 0
            curve(alice)(quiet)
            monitor = quiet.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
            quiet.connect(server.endpoint)
            assert monitor.poll(10_000 * PATIENCE)
            recv_monitor_message(monitor)
            revoked.submit('gone', CASE['messages'], sampling=FOREVER)
            other.submit('stays', CASE['messages'], sampling=FOREVER)
            wait_for('both stream', lambda: [client.step(0.01) for client in (revoked, other)] and revoked.streams['gone'].tokens and other.streams['stays'].tokens, 20)
            run('keys', 'revoke', 'alice', '--list', keys.list)
            began = time.monotonic()
            wait_for('its stream ends', lambda: revoked.step(0.01) or revoked.streams['gone'].end, 5)
            end = revoked.streams['gone'].end
            assert end['type'] == 'error' and end['error']['code'] == 'denied' and 'revoked' in end['error']['message'], end
            wait_for('its silent connection is cut', lambda: monitor.poll(10), 5)
            assert recv_monitor_message(monitor)['event'] == zmq.EVENT_DISCONNECTED
            wait_for('the log says so', lambda: 'keys_cut' in server.log(), 5)
            seconds = time.monotonic() - began
            assert seconds < 5 * PATIENCE, seconds
            print(f'  from revoke to cut: {seconds:.2f} s')
            assert handshake(server.endpoint, curve(alice), 10) == 'denied'
            # Once its connection has been refused for good, the socket has nobody to send to.
            with contextlib.suppress(zmq.Again):
                revoked.socket.send_multipart([b'ALT1j', b'{"type":"ping","nonce":5}'], zmq.NOBLOCK)
            assert revoked.receive(0.5) is None, 'nobody hears it any more'
            before = len(other.streams['stays'].tokens)
            wait_for('the other stream goes on', lambda: other.step(0.01) or len(other.streams['stays'].tokens) > before, 10)
            other.send('cancel', request_id='stays')
            other.finish()
            assert other.streams['stays'].end['type'] == 'done' and other.streams['stays'].end['reason'] == 'cancelled' or other.streams['stays'].end['error']['code'] == 'cancelled'
            quiet.disable_monitor()
            monitor.close(linger=0)
            silent.destroy(linger=0)


def keys_change_without_a_restart():
    with Keys() as keys:
        alice = keys.client('alice')
        with Server(*keys.flags(), ranks=1) as server:
            pid = server.children()['core']
            serves(server, alice)
            keys.new('alice2')
            assert handshake(server.endpoint, curve(keys.of('alice2')), 10) == 'denied'
            keys.allow('alice2')
            wait_for('the new key is let in', lambda: handshake(server.endpoint, curve(keys.of('alice2')), 3) == 'succeeded', 10)
            run('keys', 'revoke', keys.path('alice.pub'), '--list', keys.list)
            wait_for('the old key is not', lambda: handshake(server.endpoint, curve(alice), 3) == 'denied', 10)
            good = keys.list.read_text()
            keys.list.write_text('junk\n' + good)
            wait_for('a wrong list is complained about', lambda: 'allow_list_kept' in server.log() and 'line 1' in server.log(), 10)
            serves(server, keys.of('alice2'))
            keys.list.chmod(0o666)
            server.process.send_signal(signal.SIGHUP)
            wait_for('one that others may write, too', lambda: 'go-w' in server.log(), 10)
            keys.list.chmod(0o600)
            keys.list.write_text(good)
            reads = server.log().count('allow_list_read')
            server.process.send_signal(signal.SIGHUP)
            wait_for('a signal has it read', lambda: server.log().count('allow_list_read') > reads, 10)
            serves(server, keys.of('alice2'))
            assert server.children()['core'] == pid and server.process.poll() is None
            assert server.metric('althing_allow_list_reads_total') >= 5


def streams_outlive_the_core():
    with Keys() as keys:
        alice, bob = keys.client('alice'), keys.client('bob')
        with Server(*keys.flags()) as server:
            with Client(server.endpoint, keys=alice) as calm:
                calm.submit('s', CASE['messages'], sampling={'completion_tokens_max': 150, 'ignore_stop': True})
                calm.finish()
                expected = calm.streams['s'].outcome()
            keys.path('server.key').rename(keys.path('moved.key'))  # a core has its key from the supervisor
            with Client(server.endpoint, keys=alice) as client:
                client.submit('s', CASE['messages'], sampling={'completion_tokens_max': 150, 'ignore_stop': True})
                wait_for('it streams', lambda: client.step(0.01) or client.streams['s'].tokens, 20)
                core = server.children()['core']
                os.kill(core, signal.SIGKILL)
                wait_for('the killed core is gone', lambda: not alive(core), 5)
                wait_for('another core listens', lambda: handshake(server.endpoint, curve(bob), 1) == 'succeeded', 20)
                with Client(server.endpoint, hello=False, keys=bob) as thief:
                    thief.client_id = client.client_id
                    thief.send('hello', version_min=1, version_max=1, client_id=thief.client_id, client_name='thief')
                    assert thief.receive()['error']['code'] == 'denied', 'whose stream it is outlives the core as well'
                client.finish()
                assert client.streams['s'].outcome() == expected
            assert handshake(server.endpoint, curve((alice[0], *zmq.curve_keypair())), 10) == 'denied'
            assert 'core_died' in server.log()


def identities_belong_to_keys():
    with Keys() as keys:
        alice, bob = keys.client('alice'), keys.client('bob')
        with Server(*keys.flags(), ranks=1) as server:
            with Client(server.endpoint, keys=alice) as owner, Client(server.endpoint, hello=False, keys=bob) as thief:
                owner.submit('mine', CASE['messages'], sampling=FOREVER)
                wait_for('it streams', lambda: owner.step(0.01) or owner.streams['mine'].tokens, 20)
                thief.send('hello', version_min=1, version_max=1, client_id=owner.client_id, client_name='thief')
                answer = thief.receive()
                assert answer['type'] == 'error' and answer['error']['code'] == 'denied' and answer['error']['field'] == 'client_id', answer
                thief.send('resume', request_id='mine', last_sequence=0)
                assert thief.receive()['error']['code'] == 'unavailable'
                count = len(owner.streams['mine'].tokens)
                wait_for('the owner still has it', lambda: owner.step(0.01) or len(owner.streams['mine'].tokens) > count, 10)
                owner.send('cancel', request_id='mine')
                owner.finish()
            # A ROUTER identity of one's own could be somebody else's a moment later.
            for whose in (alice, bob):
                with Client(server.endpoint, hello=False, keys=whose, identity=b'worker') as named:
                    named.send('hello', version_min=1, version_max=1, client_id='x' * 32, client_name='named')
                    answer = named.receive()
                    assert answer['error']['code'] == 'denied' and answer['error']['field'] == 'identity', answer
            serves(server, alice)


def only_gateways_speak_for_others():
    with Keys() as keys:
        acme = keys.client('acme-1', 'client', '--tenant', 'acme')
        plain, web = keys.client('plain'), keys.client('web', 'gateway')
        with Server(*keys.flags(), ranks=1) as server:
            def submit(whose, tenant):
                with Client(server.endpoint, keys=whose) as client:
                    client.submit('t', CASE['messages'], sampling={'completion_tokens_max': 2}, **({'tenant': tenant} if tenant else {}))
                    client.finish()
                    return client.streams['t'].end
            assert submit(acme, '')['type'] == 'done' and submit(acme, 'acme')['type'] == 'done'
            assert submit(plain, '')['type'] == 'done' and submit(web, 'globex')['type'] == 'done' and submit(web, '')['type'] == 'done'
            for whose, tenant in ((acme, 'globex'), (plain, 'acme'), (plain, 'default')):
                end = submit(whose, tenant)
                assert end['type'] == 'error' and end['error']['code'] == 'denied' and end['error']['field'] == 'tenant', end
            def totals():
                found = {tenant['tenant']: tenant for tenant in json.loads(server.get('/usage.json')[1])['tenants']}
                return {name: tenant['requests'] for name, tenant in found.items()}
            wait_for('who used what', lambda: totals() == {'acme': 2, 'default': 2, 'globex': 1}, 10)


def secrets_stay_where_they_are():
    with Keys() as keys:
        alice = keys.client('alice')
        with Server(*keys.flags(), '--log-level', 'debug', ranks=1) as server:
            serves(server, alice)
            printed = run('serve', TINY, *keys.flags(), '--print-config')
            assert str(keys.path('server.key')) in printed
            seen = [printed, server.log(), server.get('/metrics')[1], server.get('/live.json')[1], server.ready_file.read_text()]
            for pid in (server.process.pid, *server.children().values()):
                seen += [pathlib.Path(f'/proc/{pid}/{name}').read_bytes().decode(errors='replace') for name in ('cmdline', 'environ')]
            assert not any(secret in text for secret in keys.secrets() for text in seen)
            assert pathlib.Path(f'/proc/{server.children()["core"]}/coredump_filter').read_text().strip() == '00000010'
        keys.path('server.key').chmod(0o644)
        assert 'chmod 600' in run('serve', TINY, *keys.flags(), code=2)
        keys.path('server.key').chmod(0o600)
        keys.path('server.key').write_text('secret JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6\n')
        said = run('serve', TINY, *keys.flags(), code=2)
        assert 'example' in said and 'JTKV' not in said, said
        assert 'example' in run('keys', 'allow', EXAMPLE_PUBLIC.decode(), '--name', 'x', '--list', keys.list, code=2)


def listening(pids):
    """Addresses in LISTEN of these processes, from /proc, as (hexadecimal) host and port."""
    inodes = set()
    for pid in pids:
        for entry in pathlib.Path(f'/proc/{pid}/fd').iterdir():
            try:
                found = re.fullmatch(r'socket:\[(\d+)\]', os.readlink(entry))
            except OSError:
                continue
            inodes |= {found[1]} if found else set()
    found = set()
    for table in ('tcp', 'tcp6'):
        for line in pathlib.Path(f'/proc/net/{table}').read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == '0A' and words[9] in inodes:
                found.add(tuple(words[1].split(':')))
    return found


def is_loopback(host):
    return (len(host) == 8 and host.endswith('7F')) or host == '00000000000000000000000001000000'


def only_the_door_is_open_and_only_with_keys():
    with Server() as server:
        found = listening([server.process.pid, *server.children().values()])
        assert len(found) >= 3 and all(is_loopback(host) for host, _ in found), found  # the door, the pages, the port between core and ranks
    assert '--curve-key' in run('serve', TINY, '--bind', 'tcp://0.0.0.0:0', code=2)
    with Keys() as keys:
        alice = keys.client('alice')
        assert '--curve-allow' in run('serve', TINY, '--bind', 'tcp://0.0.0.0:0', '--curve-key', keys.path('server.key'), code=2)
        assert 'loopback' in run('serve', TINY, *keys.flags(), '--bind', 'tcp://0.0.0.0:0', '--metrics', '0.0.0.0:0', code=2)
        with Server(*keys.flags(), '--bind', 'tcp://0.0.0.0:0') as server:
            port = int(server.endpoint.rsplit(':', 1)[1])
            found = listening([server.process.pid, *server.children().values()])
            open_ones = {(host, int(number, 16)) for host, number in found if not is_loopback(host)}
            assert open_ones == {('00000000', port)}, found
            core = server.children()['core']
            os.kill(core, signal.SIGKILL)
            wait_for('the next core is at the same address', lambda: server.children().get('core') not in (None, core) and handshake(f'tcp://127.0.0.1:{port}', curve(alice), 1) == 'succeeded', 20)


def a_flood_of_unknown_keys_hurts_nobody():
    """Handshakes with unknown keys as fast as this machine makes them, against round trips of a client that is in. Short here; ALTHING_FLOOD_SECONDS makes it long."""
    with Keys() as keys:
        alice = keys.client('alice')
        with Server(*keys.flags(), ranks=1) as server, Client(server.endpoint, keys=alice) as client:
            core = server.children()['core']

            def round_trips(seconds):
                times, until = [], time.monotonic() + seconds
                while time.monotonic() < until:
                    began = time.monotonic()
                    client.send('ping', nonce=1)
                    assert client.receive(10 * PATIENCE)['type'] == 'pong'
                    times.append(time.monotonic() - began)
                    time.sleep(0.002)
                return sorted(times)
            calm = round_trips(FLOOD_SECONDS / 2)
            flood = subprocess.Popen([sys.executable, str(ROOT / 'tests/end_to_end/flood.py'), server.endpoint, alice[0].decode()], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            try:
                flood.stdout.readline()
                denied, began = denials(server), time.monotonic()
                under = round_trips(FLOOD_SECONDS)
                rate = (denials(server) - denied) / (time.monotonic() - began)
            finally:
                flood.stdin.close()
                flood.wait(20)
            p99 = [times[int(len(times) * 0.99)] * 1000 for times in (calm, under)]
            print(f'  {rate:.0f} denied handshakes a second; round trips p99 {p99[0]:.2f} ms before, {p99[1]:.2f} ms meanwhile')
            assert rate > 20, 'the flood was one'
            assert server.children()['core'] == core and server.process.poll() is None, 'nobody died of it'
            assert p99[1] < 250 * PATIENCE, p99
            serves(server, alice)


def denials(server):
    return int(re.search(r'althing_zap_requests_total\{result="denied"\} (\d+)', server.get('/metrics')[1])[1])


if __name__ == '__main__':
    main(listed_keys_come_in_and_nobody_else, commands_and_examples_are_let_in_and_say_why_not, the_cpp_example_is_let_in_by_key, the_page_of_a_server_with_keys_chats, a_revoked_key_is_told_and_cut,
         keys_change_without_a_restart, streams_outlive_the_core, identities_belong_to_keys, only_gateways_speak_for_others, secrets_stay_where_they_are,
         only_the_door_is_open_and_only_with_keys, a_flood_of_unknown_keys_hurts_nobody)
