#!/usr/bin/env python3
"""The server as a systemd service: what it tells a service manager (by a socket that plays one), and a unit that systemd accepts, that fits the server's own numbers and
that allows every system call it makes."""
import os
import pathlib
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import unittest

from harness import BINARY, PATIENCE, ROOT, Client, Server, ask, conversations, main, wait_for

UNIT = ROOT / 'packaging/althing.service.in'


class Manager:
    """A service manager's end of sd_notify: a datagram socket, and what came there. `abstract`: one without a file."""

    def __init__(self, abstract=False):
        self.folder = tempfile.TemporaryDirectory(prefix='althing-notify-')
        path = f'{self.folder.name}/notify'
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind('\0' + path if abstract else path)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.name, self.heard = ('@' if abstract else '') + path, []

    def __enter__(self):
        os.environ['NOTIFY_SOCKET'] = self.name
        return self

    def __exit__(self, *_):
        os.environ.pop('NOTIFY_SOCKET', None)
        self.socket.close()
        self.folder.cleanup()

    def look(self):
        """All that has come so far: [(sender's pid, {name: value})]."""
        self.socket.setblocking(False)
        while True:
            try:
                text, ancillary, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(12))
            except BlockingIOError:
                return self.heard
            sender = next(int.from_bytes(data[:4], 'little') for level, kind, data in ancillary if kind == socket.SCM_CREDENTIALS)
            self.heard.append((sender, dict(line.split('=', 1) for line in text.decode().splitlines())))

    def said(self, name):
        return [said[name] for _, said in self.look() if name in said]


def the_manager_hears_ready_when_it_serves_and_stopping_when_it_drains():
    for abstract in (False, True):
        with Manager(abstract) as manager, Server() as server:
            wait_for('READY=1', lambda: manager.said('READY') == ['1'], 5)
            assert wait_for('/ready agrees', server.ready, 2)
            assert not manager.said('STOPPING')
            assert server.endpoint in manager.said('STATUS')[-1], manager.heard
            with Client(server.endpoint) as client:
                client.submit('long', conversations(1)[0]['messages'], sampling={'completion_tokens_max': 300, 'ignore_stop': True})
                wait_for('tokens', lambda: client.step() or client.streams['long'].tokens)
                server.process.send_signal(signal.SIGTERM)
                wait_for('STOPPING=1 while it drains', lambda: manager.said('STOPPING') == ['1'], 2)
                assert server.process.poll() is None
                client.finish()
                assert client.streams['long'].end['type'] == 'done'
            assert server.process.wait(15 * PATIENCE) == 0
            # From the process that was started: a manager believes no other.
            assert {pid for pid, _ in manager.look()} == {server.process.pid}, manager.heard
            assert manager.said('READY') == ['1'] and manager.said('STOPPING') == ['1'], manager.heard


def not_ready_before_every_rank_has_joined():
    with Manager() as manager, tempfile.TemporaryDirectory(prefix='althing-service-') as folder:
        # Nothing to serve: it says so, and never that it is ready.
        failed = subprocess.run([BINARY, 'serve', folder], capture_output=True, text=True, timeout=30 * PATIENCE, stdin=subprocess.DEVNULL)
        assert failed.returncode != 0 and not manager.said('READY'), (failed, manager.heard)


def an_end_that_is_no_drain_is_told_too():
    with Manager() as manager, Server('--restarts-max', '0') as server:
        os.kill(server.children()['core'], signal.SIGKILL)
        assert server.process.wait(20 * PATIENCE) == 7
        assert manager.said('STOPPING') == ['1'], manager.heard


def a_socket_that_nobody_reads_stops_nothing():
    for name in ('/nonexistent/notify', 'relative', '@' + 'x' * 200):
        os.environ['NOTIFY_SOCKET'] = name
        try:
            with Server() as server:
                assert 'notify_failed' in server.log(), (name, server.log())
        finally:
            del os.environ['NOTIFY_SOCKET']


def settings_of_the_unit():
    """{name: [values]} of the service's section."""
    found = {}
    for name, value in re.findall(r'^(\w+)=(.*)$', UNIT.read_text(), re.M):
        found.setdefault(name, []).append(value)
    return found


def the_unit_fits_the_servers_own_numbers():
    unit = settings_of_the_unit()
    printed = subprocess.run([BINARY, 'serve', '--print-config', '--load', 'dummy:20b'], capture_output=True, text=True, timeout=20 * PATIENCE, check=True).stdout
    drain = int(re.search(r'^drain-seconds=(\d+)', printed, re.M)[1])
    assert int(unit['TimeoutStopSec'][0]) >= drain + 10 and unit['Type'] == ['notify'] and unit['KillMode'] == ['mixed'], unit
    command = shlex.split(unit['ExecStart'][0])
    assert command[:2] == ['@bindir@/althing', 'serve'], command
    said = subprocess.run([BINARY, 'serve', '--help'], capture_output=True, text=True, timeout=20 * PATIENCE, check=True).stdout
    for flag in command[2:]:
        if flag.startswith('--'):
            assert re.search(rf'^  {flag}\b', said, re.M), f'there is no {flag}'
    # The folders that it may write to, of which the sample's paths are.
    folders = [f'/var/lib/{unit["StateDirectory"][0]}/', f'/run/{unit["RuntimeDirectory"][0]}/']
    sample = (ROOT / 'packaging/althing.toml').read_text()
    for path in re.findall(r'^#(?:curve-key|curve-allow|usage-log) = "(.*)"', sample, re.M) + [word for word in command if word.startswith('/run/')]:
        assert any(path.startswith(folder) for folder in folders), path
    assert f'u {unit["User"][0]} ' in (ROOT / 'packaging/althing.sysusers').read_text()


def the_sample_settings_are_settings():
    with tempfile.TemporaryDirectory(prefix='althing-service-') as folder:
        whole = pathlib.Path(folder) / 'whole.toml'
        sample = (ROOT / 'packaging/althing.toml').read_text()
        # Also what is commented out: each is a line that somebody will put in.
        whole.write_text(re.sub(r'^#([\w-]+ = )', r'\1', sample, flags=re.M))
        printed = subprocess.run([BINARY, 'serve', '--config', whole, '--print-config'], capture_output=True, text=True, timeout=20 * PATIENCE)
        assert printed.returncode == 0, printed
        for name, value in re.findall(r'^([\w-]+) = (.*)$', whole.read_text(), re.M):
            assert f'{name}={value}' in printed.stdout, (name, value)


def systemd_accepts_the_unit():
    if shutil.which('systemd-analyze') is None:
        raise unittest.SkipTest('systemd-analyze is not installed (apt-get install systemd)')
    with tempfile.TemporaryDirectory(prefix='althing-service-') as folder:
        unit = pathlib.Path(folder) / 'althing.service'
        unit.write_text(UNIT.read_text().replace('@bindir@/althing', str(BINARY.resolve())))
        verified = subprocess.run(['systemd-analyze', 'verify', '--man=no', unit], capture_output=True, text=True, timeout=60)
        # Of other units of the machine it may say anything.
        ours = [line for line in verified.stderr.splitlines() if 'althing' in line]
        assert not ours and verified.returncode == 0, verified
        wrong = pathlib.Path(folder) / 'wrong-althing.service'
        wrong.write_text(unit.read_text().replace('ProtectSystem=strict', 'ProtectSystem=very'))
        assert 'protect system value' in subprocess.run(['systemd-analyze', 'verify', '--man=no', wrong], capture_output=True, text=True, timeout=60).stderr
        judged = subprocess.run(['systemd-analyze', 'security', '--offline=true', '--no-pager', unit], capture_output=True, text=True, timeout=60)
        exposure = float(re.search(r'exposure level for althing.service: ([\d.]+)', judged.stdout)[1])
        print(f'  exposure {exposure}')
        assert exposure <= 3.0, judged.stdout


def allowed_calls():
    """Names that the unit's SystemCallFilter lets through."""
    group = settings_of_the_unit()['SystemCallFilter'][0]
    listed = subprocess.run(['systemd-analyze', 'syscall-filter'], capture_output=True, text=True, timeout=60, check=True).stdout
    sets, name = {}, None
    for line in listed.splitlines():
        if line.startswith(('@', '#')):
            name = line.split()[0]
        elif name and line.startswith('  ') and not line.strip().startswith('#'):
            sets.setdefault(name, []).append(line.strip())
    def spread(word):
        return {call for inner in sets[word] for call in spread(inner)} if word.startswith('@') else {word}
    return spread(group)


def the_unit_allows_every_system_call_of_a_server():
    for tool in ('systemd-analyze', 'strace'):
        if shutil.which(tool) is None:
            raise unittest.SkipTest(f'{tool} is not installed')
    allowed = allowed_calls()
    assert len(allowed) > 200 and 'read' in allowed and 'reboot' not in allowed, len(allowed)
    with tempfile.TemporaryDirectory(prefix='althing-service-') as folder:
        wrapper, calls = pathlib.Path(folder) / 'traced', pathlib.Path(folder) / 'calls'
        wrapper.write_text(f'#!/bin/sh\nexec strace -f -qq -c -S name -U name,calls -o {calls} {BINARY.resolve()} "$@"\n')
        wrapper.chmod(0o755)
        with Server('--http', '127.0.0.1:0', '--step-timeout-ms', '60000', binary=wrapper, ready_within=120) as server, Client(server.endpoint) as client:
            ask(client, 'first', conversations(1)[0])
            client.finish(120)
            assert client.streams['first'].end['type'] == 'done', client.streams['first'].end
            # strace passes a signal on to nobody: its own child is the server.
            supervisor = int(pathlib.Path(f'/proc/{server.process.pid}/task/{server.process.pid}/children').read_text().split()[0])
            os.kill(supervisor, signal.SIGTERM)
            server.process.wait(60 * PATIENCE)
        made = set(re.findall(r'^\s*([a-z]\w+)\s+\d+\s*$', calls.read_text(), re.M)) - {'total'}
        assert len(made) > 40 and 'pidfd_open' in made, made
        assert made <= allowed, f'not allowed by the unit: {sorted(made - allowed)}'


if __name__ == '__main__':
    main(the_manager_hears_ready_when_it_serves_and_stopping_when_it_drains, not_ready_before_every_rank_has_joined, an_end_that_is_no_drain_is_told_too,
         a_socket_that_nobody_reads_stops_nothing, the_unit_fits_the_servers_own_numbers, the_sample_settings_are_settings, systemd_accepts_the_unit,
         the_unit_allows_every_system_call_of_a_server)
