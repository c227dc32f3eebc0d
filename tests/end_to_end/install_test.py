#!/usr/bin/env python3
"""`cmake --install`: what comes where, under a prefix and under DESTDIR; the installed server answers, needs Debian's libraries only, and its manual pages say every option
that --help says."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import unittest

from harness import BINARY, PATIENCE, Client, ask, conversations, main, wait_for

EMPTY = {'PATH': '/usr/bin:/bin', 'ALTHING_DEVICE': 'cpu'}
FILES = ('bin/althing', 'share/man/man1/althing.1', 'share/man/man1/althing-serve.1', 'share/man/man1/althing-keys.1', 'share/doc/althing/LICENSE', 'share/doc/althing/README.md',
         'share/doc/althing/docs/install.md', 'share/doc/althing/althing.toml', 'share/althing/monitoring/prometheus/alerts/ranks.yml', 'share/althing/examples/models/tiny/config.json',
         'share/althing/examples/monitoring/start', 'share/althing/tools/fetch-prometheus', 'lib/systemd/system/althing.service', 'lib/sysusers.d/althing.conf')


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120 * PATIENCE, stdin=subprocess.DEVNULL, **options)


def install(prefix, destdir='', *flags):
    """What `cmake --install` says; fails with it."""
    if shutil.which('cmake') is None:
        raise unittest.SkipTest('cmake is not installed')
    done = run('cmake', '--install', BINARY.parent, '--prefix', prefix, *flags, env={**os.environ, 'DESTDIR': str(destdir)})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextlib.contextmanager
def installed():
    with tempfile.TemporaryDirectory(prefix='althing-install-') as folder:
        prefix = pathlib.Path(folder).resolve() / 'prefix'
        install(prefix)
        yield prefix


def everything_has_its_place_under_a_prefix():
    with installed() as prefix:
        for name in FILES:
            assert (prefix / name).is_file(), f'{name} is missing: {sorted(str(path.relative_to(prefix)) for path in prefix.rglob("*"))[:60]}'
        assert os.access(prefix / 'bin/althing', os.X_OK) and os.access(prefix / 'share/althing/examples/monitoring/start', os.X_OK)
        assert f'ExecStart="{prefix}/bin/althing" serve' in (prefix / 'lib/systemd/system/althing.service').read_text()
        assert (prefix / 'share/doc/althing/docs/http.md').is_file()
        assert not (prefix / 'lib/libalthing_actors.a').exists()
        # The manifest names every file, pages and unit too: that is how one takes it away again.
        manifest = set((BINARY.parent / 'install_manifest.txt').read_text().splitlines())
        there = {str(path) for path in prefix.rglob('*') if path.is_file()}
        assert manifest == there, manifest ^ there


def destdir_is_not_part_of_any_path():
    with tempfile.TemporaryDirectory(prefix='althing-install-') as folder:
        install('/usr', folder)
        root = pathlib.Path(folder)
        for name in FILES:
            assert (root / 'usr' / name).is_file(), name
        for path in (root / 'usr/lib/systemd/system/althing.service', *(root / 'usr/share/man/man1').iterdir()):
            assert folder not in path.read_text(), path
        assert 'ExecStart="/usr/bin/althing" serve' in (root / 'usr/lib/systemd/system/althing.service').read_text()


def a_component_comes_alone():
    with tempfile.TemporaryDirectory(prefix='althing-install-') as folder:
        install(folder, '', '--component', 'server')
        there = {str(path.relative_to(folder)).split('/')[0] for path in pathlib.Path(folder).rglob('*') if path.is_file()}
        assert there == {'bin', 'share'}, there
        assert not (pathlib.Path(folder) / 'share/althing').exists() and (pathlib.Path(folder) / 'share/man/man1/althing-serve.1').exists()


def the_installed_server_answers():
    with installed() as prefix, tempfile.TemporaryDirectory(prefix='althing-install-') as folder:
        version = run(prefix / 'bin/althing', '--version', env=EMPTY, cwd='/')
        assert version.returncode == 0 and re.match(r'althing \d', version.stdout), version
        ready = pathlib.Path(folder) / 'ready'
        server = subprocess.Popen([prefix / 'bin/althing', 'serve', prefix / 'share/althing/examples/models/tiny', '--ranks', '2', '--bind', 'tcp://127.0.0.1:0', '--metrics', '',
                                   '--ready-file', ready, '--log-level', 'off'], env=EMPTY, cwd='/', stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        try:
            wait_for('the installed server is ready', lambda: ready.exists() or server.poll() is not None, 30)
            assert server.poll() is None, f'it ended with {server.returncode}'
            case = conversations(1)[0]
            with Client(json.loads(ready.read_text())['endpoint']) as client:
                ask(client, 'first', case)
                client.finish()
                assert client.streams['first'].tokens == case['completion_ids'], client.streams['first'].end
        finally:
            server.send_signal(signal.SIGTERM)
            assert server.wait(20 * PATIENCE) == 0


def its_libraries_are_the_systems():
    with installed() as prefix:
        headers = run('objdump', '-p', prefix / 'bin/althing')
        if headers.returncode != 0:
            raise unittest.SkipTest('objdump is not installed')
        assert not re.search(r'R(UN)?PATH', headers.stdout), 'an installed program looks for libraries where the system does, and nowhere else'
        linked = run('ldd', prefix / 'bin/althing', env=EMPTY).stdout
        assert 'not found' not in linked, linked
        if shutil.which('dpkg') is None:
            raise unittest.SkipTest('this is not Debian: nobody knows whose a library is')
        # By either name: a package may have put it where /lib only leads to.
        names = {path: {path, str(pathlib.Path(path).resolve())} for path in re.findall(r'=> (/\S+)', linked)}
        owned = set(re.findall(r': (/\S+)$', run('dpkg', '-S', *sorted(set().union(*names.values()))).stdout, re.M))
        strangers = [path for path, both in names.items() if not both & owned]
        assert len(names) > 5 and not strangers, f'these belong to no package: {strangers}'


def commands():
    """[words of each command], of the program itself too."""
    def below(words):
        said = run(BINARY, *words, '--help').stdout
        _, _, listed = said.partition('\nSubcommands:\n')
        names = re.findall(r'^  (\S+)', listed, re.M)
        return [words] + [command for name in names for command in below([*words, name])]
    return below([])


def manual_page(folder, words):
    return (folder / f'{"-".join(["althing", *words[:1]])}.1').read_text()


def plain(page):
    """A page's words as they are read: fonts and escapes gone."""
    return page.replace('\\-', '-').replace('\\e', '\\').replace('\\&', '').replace('\\(aq', "'").replace('\\(dq', '"').replace('\\fB', '').replace('\\fI', '').replace('\\fR', '')


def pages_say_every_option_of_every_command():
    with installed() as prefix:
        folder, options = prefix / 'share/man/man1', 0
        all_commands = commands()
        assert ['serve'] in all_commands and ['keys', 'revoke'] in all_commands and len(all_commands) > 15, all_commands
        for words in all_commands:
            said = run(BINARY, *words, '--help').stdout.partition('\nSubcommands:\n')[0]
            page = plain(manual_page(folder, words))
            if len(words) == 2:
                page = page.partition(f'.SS althing {" ".join(words)} ')[2].partition('\n.SS ')[0].partition('\n.SH ')[0]
            assert page, words
            for line in said.splitlines():
                described = re.match(r'  (-\S+)(?: (.*))?$', line)
                if not described:
                    continue
                for name in described[1].split(','):
                    assert re.search(rf'^\.TP\n(.*, )?{re.escape(name)}(, .*)?( .*)?$', page, re.M), f'althing {" ".join(words)}: {name} is in --help and not in the page'
                    options += 1
                for variable in re.findall(r'\(Env:(\w+)\)', line):
                    assert variable in page, (words, variable)
        assert options > 200, options
        names = {path.name for path in folder.iterdir()}
        assert names == {f'{"-".join(["althing", *words])}.1' for words in all_commands if len(words) < 2}, names


def pages_are_as_man_wants_them():
    if shutil.which('groff') is None:
        raise unittest.SkipTest('groff is not installed (apt-get install groff-base)')
    with installed() as prefix:
        pages = sorted((prefix / 'share/man/man1').iterdir())
        for page in pages:
            checked = run('groff', '-man', '-ww', '-z', '-Tutf8', '-rLL=100n', page, env={**os.environ, 'LC_ALL': 'C.UTF-8'})
            assert checked.returncode == 0 and not checked.stderr.strip(), (page.name, checked.stderr)
        if shutil.which('man'):
            shown = run('man', '--warnings', '-l', prefix / 'share/man/man1/althing-serve.1', env={**os.environ, 'LC_ALL': 'C.UTF-8', 'MANPAGER': 'cat', 'MANWIDTH': '100'})
            assert shown.returncode == 0 and not shown.stderr.strip() and '--ranks' in shown.stdout and 'EXIT STATUS' in shown.stdout, shown
        if shutil.which('mandoc'):
            linted = run('mandoc', '-T', 'lint', '-W', 'warning', *pages)
            assert linted.returncode == 0, linted.stdout


def manual_prints_one_page_and_refuses_others():
    serve = run(BINARY, 'manual', 'serve')
    assert serve.returncode == 0 and serve.stdout.startswith('.\\"') and '.TH ALTHING\\-SERVE 1' in serve.stdout, serve
    assert '.TH ALTHING 1' in run(BINARY, 'manual').stdout
    wrong = run(BINARY, 'manual', 'frob')
    assert wrong.returncode == 3 and "no command 'frob'" in wrong.stderr, wrong
    nowhere = run(BINARY, 'manual', '--folder', '/nonexistent/man1')
    assert nowhere.returncode == 6 and '/nonexistent/man1' in nowhere.stderr, nowhere


if __name__ == '__main__':
    main(everything_has_its_place_under_a_prefix, destdir_is_not_part_of_any_path, a_component_comes_alone, the_installed_server_answers, its_libraries_are_the_systems,
         pages_say_every_option_of_every_command, pages_are_as_man_wants_them, manual_prints_one_page_and_refuses_others)
