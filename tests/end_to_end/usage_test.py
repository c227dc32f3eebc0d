#!/usr/bin/env python3
"""What a newcomer types: --help of every program and tool, which does no work; benchmarks on a machine that lacks what they measure; the example files that the README names."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from harness import BINARY, PATIENCE, ROOT, TINY, Server, main

# The programs under build/…/tests, colon-separated: ctest gives all that this build makes.
PROGRAMS = [pathlib.Path(path) for path in os.environ.get('ALTHING_PROGRAMS', '').split(':') if path]
TOOLS = ('bundle', 'check-gpu', 'fetch-prometheus', 'grafana_dashboards.py', 'install-dependencies', 'kill-sweep', 'lint', 'protocol_frames.py', 'prove-quickstart', 'quickstart', 'routing-recount', 'test', 'tsan-actors')
SCRIPTS = ('bench/serve_decode.py', 'bench/serving.py', 'bench/start_time.py', 'bench/door_storm.py', 'gpu/full_size_checkpoint.py', 'gpu/serve_streams.py', 'end_to_end/faults_test.py')


def run(*words, **options):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL, **options)


def check_help(*command):
    with tempfile.TemporaryDirectory(prefix='althing-usage-') as folder:
        before = sum(os.times()[2:4])
        result = run(*command, '--help', cwd=folder)
        spent = sum(os.times()[2:4]) - before
        assert result.returncode == 0 and len(result.stdout.split()) > 5, (command, result)
        # A closing line would say that something ran; gtest's help has no such line, nor has any other.
        assert not re.search(r'^\d+ passed, \d+ failed', result.stdout, re.M), (command, result.stdout[-300:])
        assert not os.listdir(folder), (command, os.listdir(folder))
    return result.stdout, spent


def every_test_program_says_what_it_takes_and_does_nothing():
    programs = [path for path in PROGRAMS if path.exists()] or sorted(path for path in (BINARY.parent / 'tests').iterdir() if path.is_file() and os.access(path, os.X_OK))
    assert len(programs) > 8, programs
    for program in programs:
        said, spent = check_help(program)
        if program.name.endswith('_tests'):
            assert 'gtest' in said, (program, said[:300])
        else:
            assert said.startswith(f'usage: {program.name}'), (program, said[:300])
        assert spent < 1.5 * PATIENCE, f'{program.name} took {spent:.1f} s of processor time to say what it takes'


def every_tool_and_script_says_what_it_takes_and_does_nothing():
    for tool in TOOLS:
        check_help(ROOT / 'tools' / tool)
    for script in SCRIPTS:
        check_help(sys.executable, ROOT / 'tests' / script)
    assert run(ROOT / 'tools/tsan-actors', '--frob').returncode == 2


def says_in_one_line(code, needle, *words, **options):
    result = run(*words, **options)
    assert result.returncode == code and needle in result.stderr and 'Traceback' not in result.stderr + result.stdout, (words, result)
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def benchmarks_that_lack_something_say_what():
    bench = ROOT / 'tests/bench'
    says_in_one_line(3, '--endpoint', sys.executable, bench / 'serve_decode.py', '--endpoint', 'tcp://127.0.0.1:9')
    says_in_one_line(3, 'build it', sys.executable, bench / 'start_time.py', '/nonexistent/althing', TINY)
    says_in_one_line(3, 'config.json', sys.executable, bench / 'start_time.py', BINARY, '/nonexistent', '--device', 'cpu')
    says_in_one_line(3, 'build it', sys.executable, bench / 'serving.py', env={**os.environ, 'ALTHING_BINARY': '/nonexistent/althing'})
    without_gpu = {**os.environ, 'CUDA_VISIBLE_DEVICES': ''}
    says_in_one_line(5, '--device cuda', sys.executable, bench / 'start_time.py', BINARY, TINY, env=without_gpu)
    # The control: with what it needs, it measures.
    result = run(sys.executable, bench / 'start_time.py', BINARY, TINY, '--device', 'cpu', '--prompt', '8', '--tokens', '2')
    assert result.returncode == 0 and 'first token after' in result.stdout, result


def a_missing_library_is_one_line_too():
    # Modules of these names that cannot be imported stand in front of the real ones.
    with tempfile.TemporaryDirectory(prefix='althing-modules-') as folder:
        for name in ('numpy', 'zmq', 'torch'):
            pathlib.Path(folder, f'{name}.py').write_text(f'raise ImportError("hidden", name="{name}")\n')
        hidden = {**os.environ, 'PYTHONPATH': folder}
        says_in_one_line(5, 'python3-numpy', sys.executable, ROOT / 'tests/gpu/full_size_checkpoint.py', f'{folder}/checkpoint', env=hidden)
        assert not pathlib.Path(folder, 'checkpoint').exists()
        says_in_one_line(5, 'python3-zmq', sys.executable, ROOT / 'tests/bench/serve_decode.py', env=hidden)
        check_help_without = run(sys.executable, ROOT / 'tests/gpu/full_size_checkpoint.py', '--help', env=hidden)
        assert check_help_without.returncode == 0, check_help_without
    says_in_one_line(3, 'no checkpoint', sys.executable, ROOT / 'tests/gpu/full_size_checkpoint.py', '/nonexistent', '--only-reference')


def the_example_tools_make_the_model_call_one():
    tools = ROOT / 'examples/tools.json'
    assert '--tools examples/tools.json' in (ROOT / 'README.md').read_text()
    names = [function['name'] for function in json.loads(tools.read_text())]
    with Server() as server:
        question = ('chat', '--endpoint', server.endpoint, '--reasoning', 'low', '--once', 'Weather in Liverpool?')
        asked = run(BINARY, *question, '--tools', tools)
        assert asked.returncode == 0 and any(f'[call functions.{name}]' in asked.stdout for name in names) and 'Liverpool' in asked.stdout, asked
        control = run(BINARY, *question)
        assert control.returncode == 0 and '[call' not in control.stdout, control


def files_that_the_readme_names_are_there():
    text = (ROOT / 'README.md').read_text()
    linked = re.findall(r'\]\(([^)#:]+)\)', text)
    typed = re.findall(r'(?:python3 |^    )((?:examples|tools|tests)/[\w./-]+)', text, re.M)
    missing = [name for name in {*linked, *typed} if not (ROOT / name).exists()]
    assert len(linked) > 5 and len(typed) > 10 and not missing, (linked, typed, missing)


if __name__ == '__main__':
    main(every_test_program_says_what_it_takes_and_does_nothing, every_tool_and_script_says_what_it_takes_and_does_nothing, benchmarks_that_lack_something_say_what,
         a_missing_library_is_one_line_too, the_example_tools_make_the_model_call_one, files_that_the_readme_names_are_there)
