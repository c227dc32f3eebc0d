#!/usr/bin/env python3
"""tools/bundle packs a server that runs elsewhere: every library is in the bundle or glibc's own, and it serves with an empty environment."""
import os
import pathlib
import re
import signal
import subprocess
import tempfile

from harness import BINARY, PATIENCE, ROOT, main, wait_for

GLIBC = re.compile(r'(ld-linux-x86-64|libc|libm|libmvec|libpthread|libdl|librt|libresolv|libutil|libanl|linux-vdso)\.so')
EMPTY = {'PATH': '/usr/bin:/bin', 'LD_LIBRARY_PATH': '', 'ALTHING_DEVICE': 'cpu'}


def unpacked(folder, *flags):
    archive = pathlib.Path(folder) / 'bundle.tar.gz'
    subprocess.run([ROOT / 'tools/bundle', '--build', BINARY.parent, '--output', archive, *flags], check=True, capture_output=True, timeout=120 * PATIENCE)
    elsewhere = pathlib.Path(folder) / 'elsewhere'
    elsewhere.mkdir()
    subprocess.run(['tar', '-C', elsewhere, '-xzf', archive], check=True, timeout=60)
    return elsewhere / 'althing-bundle'


def every_library_is_there():
    with tempfile.TemporaryDirectory() as folder:
        root = unpacked(folder, '--tests', '--without-model').resolve()
        programs = [root / 'althing', *(root / 'tests').iterdir()]
        assert len(programs) > 5, programs
        for program in programs:
            lines = subprocess.run(['ldd', program], env=EMPTY, capture_output=True, text=True, check=True).stdout.splitlines()
            found = dict(match.groups() for line in lines if (match := re.match(r'\s*(\S+) => (.*?)(?: \(0x.*)?$', line)))
            assert len(found) >= 2, lines
            strangers = {name: path for name, path in found.items() if not GLIBC.match(name) and root not in pathlib.Path(os.path.normpath(path)).parents}
            assert not strangers, f'{program.name} takes these from the machine: {strangers}'


def it_serves_elsewhere():
    with tempfile.TemporaryDirectory() as folder:
        root = unpacked(folder)
        watch = subprocess.run([root / 'examples/monitoring/start', '--server', '127.0.0.1:1'], env=EMPTY, cwd='/', capture_output=True, text=True, timeout=20)
        assert watch.returncode == 3 and 'no server answers' in watch.stderr, watch
        assert (root / 'monitoring/prometheus/alerts/ranks.yml').exists() and (root / 'docs/runbook.md').exists()
        assert '--ranks' in (root / 'man/man1/althing-serve.1').read_text().replace('\\-', '-')
        version = subprocess.run([root / 'althing', '--version'], env=EMPTY, cwd='/', capture_output=True, text=True, check=True, timeout=20)
        assert re.match(r'althing \d', version.stdout), version
        ready = pathlib.Path(folder) / 'ready'
        server = subprocess.Popen([root / 'althing', 'serve', root / 'examples/models/tiny', '--bind', 'tcp://127.0.0.1:0', '--metrics', '',
                                   '--ready-file', ready, '--log-level', 'off'], env=EMPTY, cwd='/', stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            wait_for('the bundled server is ready', lambda: ready.exists() or server.poll() is not None, 30)
            assert server.poll() is None, f'it ended with {server.returncode}'
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(20 * PATIENCE) == 0


if __name__ == '__main__':
    main(every_library_is_there, it_serves_elsewhere)
