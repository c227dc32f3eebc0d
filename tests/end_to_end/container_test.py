#!/usr/bin/env python3
"""The Containerfile, as far as it can be tried without a container runtime: it reads as one, what it copies is there and suffices to configure a build, its packages are Debian's
and exactly those that the program is linked with, and its health check tells a server that lives from none."""
import fnmatch
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from harness import BINARY, PATIENCE, ROOT, Server, main

INSTRUCTIONS = {'FROM', 'RUN', 'COPY', 'ADD', 'WORKDIR', 'USER', 'ENV', 'HEALTHCHECK', 'ENTRYPOINT', 'CMD', 'ARG', 'EXPOSE', 'LABEL', 'STOPSIGNAL', 'VOLUME'}
MADE_BY_TOOLS = {'build/althing-bundle.tar.gz'}  # tools/bundle
BASE_SYSTEM = {'libc6'}  # in every image of Debian


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120 * PATIENCE, stdin=subprocess.DEVNULL, **options)


def stages():
    """[(name, parent, [(instruction, text)])] in order; continued lines are one."""
    text = re.sub(r'\\\n\s*', '', re.sub(r'^\s*#.*\n', '', (ROOT / 'Containerfile').read_text(), flags=re.M))
    found = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        word, _, rest = line.partition(' ')
        assert word in INSTRUCTIONS, line
        if word == 'FROM':
            parent, _, name = rest.partition(' AS ')
            found.append((name, parent, []))
        else:
            found[-1][2].append((word, rest))
    return found


def lineage(name):
    """The instructions that a stage has been through, its parents' first."""
    by_name = {stage[0]: stage for stage in stages()}
    _, parent, own = by_name[name]
    return (lineage(parent) if parent in by_name else []) + own


def it_reads_as_a_containerfile_and_ends_as_a_user():
    seen = set()
    for name, parent, instructions in stages():
        assert parent == 'debian:12-slim' or parent in seen, f'{name} comes from {parent}'
        for word, rest in instructions:
            if match := re.match(r'--from=(\S+)', rest):
                assert match[1] in seen, rest
            if word in ('ENTRYPOINT', 'CMD'):
                assert isinstance(json.loads(rest), list), f'{word} must be a list, or a shell stands between it and signals'
        seen.add(name)
    for name in ('bundle', stages()[-1][0]):
        instructions = lineage(name)
        assert [rest for word, rest in instructions if word == 'USER'][-1] == 'althing', name
        assert [json.loads(rest) for word, rest in instructions if word == 'ENTRYPOINT'] == [['althing']], name


def ignored(path):
    """As .dockerignore has it: the last line that fits decides."""
    verdict = False
    for line in (ROOT / '.dockerignore').read_text().splitlines():
        if not line or line.startswith('#'):
            continue
        pattern = line.removeprefix('!')
        parts = path.split('/')
        above = ['/'.join(parts[:count]) for count in range(1, len(parts) + 1)]
        if any(fnmatch.fnmatchcase(each, pattern) or (pattern.startswith('**/') and fnmatch.fnmatchcase(each.rsplit('/', 1)[-1], pattern[3:])) for each in above):
            verdict = not line.startswith('!')
    return verdict


def context():
    """What a build is given: the repository's files that are not ignored."""
    listed = run('git', '-C', ROOT, 'ls-files', '--cached', '--others', '--exclude-standard')
    if listed.returncode != 0:
        raise unittest.SkipTest('this is no clone: which files belong to the repository is not known')
    return [path for path in listed.stdout.splitlines() if not ignored(path) and (ROOT / path).exists()]


def what_is_copied_is_there():
    files = context()
    for _, _, instructions in stages():
        for word, rest in instructions:
            if word in ('COPY', 'ADD') and not rest.startswith('--from='):
                for source in rest.split()[:-1]:
                    assert source == '.' or source in files or source in MADE_BY_TOOLS, f'{word} {rest}: there is no {source}'
                    assert not ignored(source), f'.dockerignore leaves out {source}'
    assert ignored('build/release/althing') and ignored('.git/config') and ignored('tests/tidy/tidy.py') and not ignored('protocol/wire/wire.capnp')


def what_is_copied_can_be_configured():
    if shutil.which('cmake') is None:
        raise unittest.SkipTest('cmake is not installed')
    commands = [rest for name, _, instructions in stages() if name == 'build' for word, rest in instructions if word == 'RUN']
    configure = next(rest.split() for rest in commands if rest.startswith('cmake --preset'))
    with tempfile.TemporaryDirectory(prefix='althing-context-') as folder:
        for path in context():
            target = pathlib.Path(folder) / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / path, target, follow_symlinks=False)
        done = run(*configure, cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
        # Each command of the build is one that exists there: the program that is built, the preset's folder.
        assert any('ninja -C build/release althing' in rest for rest in commands) and (pathlib.Path(folder) / 'build/release/build.ninja').exists()
        assert run('ninja', '-C', 'build/release', '-n', 'althing', cwd=folder).returncode == 0


def packages():
    """Those that the default image installs."""
    instructions = stages()[-1][2]
    install = next(rest for word, rest in instructions if word == 'RUN' and 'apt-get install' in rest)
    words = re.search(r'apt-get install (.*?)&&', install)[1].split()
    return {word for word in words if not word.startswith('-')}


def packages_of(libraries):
    """Debian's packages of these files, by either name that one may have."""
    names = {str(name) for path in libraries for name in (path, pathlib.Path(path).resolve())}
    return {line.split(':')[0] for line in run('dpkg', '-S', *sorted(names)).stdout.splitlines()}


def its_packages_are_those_that_the_program_is_linked_with():
    if not all(shutil.which(tool) for tool in ('dpkg', 'objdump', 'apt-cache')) or 'bookworm' not in pathlib.Path('/etc/os-release').read_text():
        raise unittest.SkipTest('this is not Debian 12, of which the image is made')
    linked = dict(re.findall(r'^\s*(\S+) => (/\S+)', run('ldd', BINARY).stdout, re.M))
    direct = re.findall(r'NEEDED\s+(\S+)', run('objdump', '-p', BINARY).stdout)
    wanted = packages_of([linked[name] for name in direct if name in linked]) - BASE_SYSTEM
    assert len(wanted) > 8 and packages() == wanted, f'too many: {packages() - wanted}, too few: {wanted - packages()}'
    # And those bring along what they need themselves.
    closure = set(re.findall(r'^(?:  (?:Pre)?Depends: )?<?([\w.+-]+)', run('apt-cache', 'depends', '--recurse', '--no-recommends', '--no-suggests', '--no-conflicts', '--no-breaks',
                                                                 '--no-replaces', '--no-enhances', *sorted(packages())).stdout, re.M))
    missing = packages_of(linked.values()) - closure - BASE_SYSTEM
    assert len(closure) > 20 and not missing, f'nothing brings {missing}'


def every_package_is_debians():
    if shutil.which('apt-cache') is None:
        raise unittest.SkipTest('this is not Debian')
    listed = run(ROOT / 'tools/install-dependencies', '--run', '--list').stdout.split()
    known = set(re.findall(r'^Package: (\S+)', run('apt-cache', 'show', '--no-all-versions', *sorted(packages() | set(listed))).stdout, re.M))
    if not known:
        raise unittest.SkipTest('apt has no lists here (apt-get update)')
    assert not packages() - known and not set(listed) - known, (packages() | set(listed)) - known


def its_health_check_knows_a_server_that_lives():
    command = json.loads(re.search(r'CMD (\[.*\])$', next(rest for word, rest in lineage('bundle') if word == 'HEALTHCHECK'))[1])
    assert command[:2] == ['bash', '-c'] and '/9464 ' in command[2], command
    with Server(ranks=1) as server:
        def check():
            return run(*command[:2], command[2].replace('/9464 ', f'/{server.metrics_address.rsplit(":", 1)[1]} ')).returncode
        assert check() == 0
        server.process.terminate()
        server.process.wait(20 * PATIENCE)
        assert check() != 0


if __name__ == '__main__':
    main(it_reads_as_a_containerfile_and_ends_as_a_user, what_is_copied_is_there, what_is_copied_can_be_configured, its_packages_are_those_that_the_program_is_linked_with,
         every_package_is_debians, its_health_check_knows_a_server_that_lives)
