#!/usr/bin/env python3
"""Runs the conformance kit against our own clients (Python sync and async, C++), in both encodings, and its negative controls: every case must fail with a client
that has one of the defects which the case names, and pass with the same client without it.

    conformance_test.py [CASE…]   with ALTHING_CONFORMANCE_CLIENT naming the C++ program, where it is built
"""
import concurrent.futures
import importlib.machinery
import importlib.util
import os
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parent / 'end_to_end'))
from harness import ROOT, main  # noqa: E402

try:
    import capnp
except ImportError:
    capnp = None
CPP_CLIENT = pathlib.Path(os.environ.get('ALTHING_CONFORMANCE_CLIENT', ROOT / 'build/release/tests/conformance_client'))
AT_ONCE = 2
WRONG_SECONDS = 4  # many defects show in something that never comes


def kit():
    loader = importlib.machinery.SourceFileLoader('conformance_run', str(FOLDER / 'run'))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader('conformance_run', loader))
    loader.exec_module(module)
    return module


def python(*words):
    return [sys.executable, str(FOLDER / words[0]), *words[1:]]


def passes(command):
    """Every case in every encoding that can be spoken here, and none is left out."""
    run = kit()
    encodings = ['json', 'capnp'] if capnp else ['json']
    jobs = [(function, encoding) for encoding in encodings for function, _ in run.CASES]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        reasons = list(pool.map(lambda job: run.play_case(job[0], command, job[1]), jobs))
    failures = [f'{function.__name__} ({encoding}): {why}' for (function, encoding), why in zip(jobs, reasons) if why]
    assert not failures, '\n  '.join(['failed:', *failures])
    print(f'  {len(jobs)} cases in {" and ".join(encodings)}' + ('' if capnp else '; pycapnp is not installed, so not in Cap\'n Proto'))


def the_python_client_for_threads():
    passes(python('python_client.py'))


def the_python_client_for_asyncio():
    passes(python('python_client.py', '--async'))


def the_cpp_client():
    assert CPP_CLIENT.exists(), f'{CPP_CLIENT} is not built'
    passes([str(CPP_CLIENT)])


def each_case_fails_with_a_client_that_is_wrong():
    run = kit()
    jobs = [(function, defect) for function, wrong in run.CASES for defect in wrong]
    assert all(wrong for _, wrong in run.CASES), 'a case without a control'
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        reasons = list(pool.map(lambda job: run.play_case(job[0], python('wrong_client.py', job[1]), 'json', WRONG_SECONDS), jobs))
    blind = [f'{function.__name__} does not see {defect}' for (function, defect), why in zip(jobs, reasons) if not why]
    assert not blind, '\n  '.join(['', *blind])
    for (function, defect), why in zip(jobs, reasons):
        print(f'  {function.__name__} sees {defect}: {why.splitlines()[0][:150]}')


def the_wrong_client_is_right_without_a_defect():
    passes(python('wrong_client.py', 'none'))


def a_command_that_does_nothing_fails_every_case():
    run = kit()
    right = [function.__name__ for function, _ in run.CASES if not run.play_case(function, ['/bin/true'], 'json', WRONG_SECONDS)]
    assert not right, right


def without_cpp(*cases):
    """A build without tests has no C++ client; that it was looked for is said."""
    if CPP_CLIENT.exists():
        return cases
    print(f'skipped the_cpp_client: {CPP_CLIENT} is not built')
    return [case for case in cases if case is not the_cpp_client]


if __name__ == '__main__':
    main(*without_cpp(the_python_client_for_threads, the_python_client_for_asyncio, the_cpp_client, each_case_fails_with_a_client_that_is_wrong,
                      the_wrong_client_is_right_without_a_defect, a_command_that_does_nothing_fails_every_case), server=False)
