#!/usr/bin/env python3
"""Checks that tools/test and tools/check-gpu count honestly: a runner that fails, dies, hangs or says nothing can never look like a pass. And that
tools/fetch-prometheus takes what is there and says what is missing.

Runs small shell commands through their reports. Closes with `N passed, N failed, N skipped`.
"""

import contextlib
import importlib.machinery
import importlib.util
import io
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from test_all import Report, side_by_side  # noqa: E402
from verdict import close  # noqa: E402

CHECK_GPU = Path(__file__).resolve().parents[2] / "tools/check-gpu"

# (shell command, whether the step succeeds, what it adds to passed, failed, skipped)
RUNNERS = [
    ("echo '3 passed, 0 failed, 1 skipped'", True, (3, 0, 1)),
    ("echo '3 passed, 2 failed, 0 skipped'; exit 1", False, (3, 2, 0)),
    ("echo '3 passed, 0 failed, 0 skipped'; exit 23", False, (3, 1, 0)),  # a leak found at exit
    ("echo '3 passed, 2 failed, 0 skipped'", False, (3, 2, 0)),  # a runner whose exit code lies
    ("echo '1 passed, 0 failed, 0 skipped'; echo '2 passed, 0 failed, 0 skipped'", True, (2, 0, 0)),  # the last line counts
    ("echo 'all 3 passed, 0 failed, 0 skipped, almost'", False, (0, 1, 0)),
    ("echo nothing", False, (0, 1, 0)),
    ("kill -9 $$", False, (0, 1, 0)),
    ("echo '3 passed, 0 failed, 0 skipped'; tail -f /dev/null & wait", False, (3, 1, 0)),  # hangs after its closing line
]

# The same for a sanitizer over a runner.
COPIED, SENT, OTHER = "a::b::copy_async_16(unsigned int, const void *)+0x10", "a::b::store_in_cluster_16(float)+0x20", "void a::other<int>(int)+0x30"


def races(*pairs):
    """A log of racecheck in which these pairs of accesses race."""
    shown = "".join(f"========= Error: Race reported between Write access at {a} in x.cuh:1\\n=========     and Write access at {b} in y.cuh:2 [8 hazards]\\n========= \\n"
                    for a, b in pairs)
    return f"printf '%b' '{shown}'; echo '3 passed, 0 failed, 0 skipped'; echo '========= RACECHECK SUMMARY: {len(pairs)} hazards displayed ({len(pairs)} errors, 0 warnings)'"


# Of the step "racecheck".
RACES = [
    (races((COPIED, SENT), (SENT, COPIED)), True, (3, 0, 0)),
    (races((COPIED, SENT), (SENT, OTHER)), False, (3, 1, 0)),
    (races((COPIED, COPIED)), False, (3, 1, 0)),
    ("echo '3 passed, 0 failed, 0 skipped'; echo '========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)'", False, (3, 1, 0)),  # not shown
]
SANITIZED = [
    ("echo '3 passed, 0 failed, 0 skipped'; echo '========= ERROR SUMMARY: 0 errors'", True, (3, 0, 0)),
    ("echo '3 passed, 0 failed, 0 skipped'; echo '========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)'", True, (3, 0, 0)),
    ("echo '3 passed, 0 failed, 0 skipped'; echo '========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)'", False, (3, 1, 0)),
    ("echo '3 passed, 0 failed, 0 skipped'; echo '========= ERROR SUMMARY: 10 errors'; exit 86", False, (3, 2, 0)),  # the exit code, and the summary
    ("echo '3 passed, 0 failed, 0 skipped'", False, (3, 1, 0)),  # the sanitizer never came to its end
    ("echo '========= ERROR SUMMARY: 0 errors'", False, (0, 1, 0)),  # the program never did
    ("echo '0 passed, 0 failed, 7 skipped'; echo '========= ERROR SUMMARY: 0 errors'", False, (0, 1, 7)),  # it found no device
]


def gpu_report():
    """The report class of tools/check-gpu, whose file has no .py at its end."""
    loader = importlib.machinery.SourceFileLoader("check_gpu", str(CHECK_GPU))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_gpu", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module.GpuReport


def sanitized(command, step="a step"):
    with tempfile.TemporaryDirectory(prefix="althing-tools-") as logs, contextlib.redirect_stdout(io.StringIO()):
        report = gpu_report()(Path(logs))
        ok = report.sanitize(step, ["bash", "-c", command], 2)
    return ok, (report.passed, report.failed, report.skipped)


def without_gpu():
    """What is wrong with a run of tools/check-gpu that finds no GPU, or None."""
    with tempfile.TemporaryDirectory(prefix="althing-tools-") as logs:
        run = subprocess.run([sys.executable, CHECK_GPU, "build", "model", "--only", "cuda_tests", "racecheck", "--logs", logs], capture_output=True, text=True,
                             env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    good = run.returncode == 0 and run.stdout.rstrip().endswith("0 passed, 0 failed, 2 skipped") and "cuda_tests: skipped: " in run.stdout
    return None if good else run.stdout + run.stderr


def counted(command, **options):
    """(succeeded, (passed, failed, skipped), what was printed) of one step."""
    with tempfile.TemporaryDirectory(prefix="althing-tools-") as logs, contextlib.redirect_stdout(io.StringIO()) as printed:
        report = Report(Path(logs))
        ok = report.run("a step", command, 2, **options)
        report.close()
    return ok, (report.passed, report.failed, report.skipped), printed.getvalue()


def counted_side_by_side():
    """The counts of 30 steps, four at once, each of which passes two tests and fails one."""
    with tempfile.TemporaryDirectory(prefix="althing-tools-") as logs, contextlib.redirect_stdout(io.StringIO()):
        report = Report(Path(logs))
        command = ["bash", "-c", "echo '2 passed, 1 failed, 0 skipped'; exit 1"]
        verdicts = side_by_side(4, lambda number: report.run(f"step {number}", command, 5, counts=True), range(30))
    return verdicts == [False] * 30 and len(report.rows) == 30, (report.passed, report.failed, report.skipped)


def fetched(option, *on_path):
    """(exit status, output) of a copy of tools/fetch-prometheus in a tree where nothing was fetched, with empty programs of these names on PATH."""
    with tempfile.TemporaryDirectory(prefix="althing-tools-") as folder:
        bin_folder = Path(folder) / "bin"
        bin_folder.mkdir()
        (Path(folder) / "tools").mkdir()
        script = shutil.copy(CHECK_GPU.with_name("fetch-prometheus"), Path(folder) / "tools")
        for name in on_path:
            (bin_folder / name).touch(mode=0o755)
        for name in ("bash", "dirname", "env", "sed"):
            (bin_folder / name).symlink_to(shutil.which(name))
        run = subprocess.run([script, option], capture_output=True, text=True, env={"PATH": str(bin_folder)})
        return run.returncode, (run.stdout + run.stderr).replace(str(bin_folder), "BIN")


def run():
    for command, succeeds, sums in RUNNERS:
        ok, found, printed = counted(["bash", "-c", command], counts=True)
        closing = "%d passed, %d failed, %d skipped" % sums
        good = ok == succeeds and found == sums and printed.rstrip().endswith(closing)
        yield command, None if good else f"succeeded {ok}, counted {found}, expected {succeeds}, {sums}"
    for step, command, succeeds, sums in [("a step", *case) for case in SANITIZED] + [("racecheck", *case) for case in RACES]:
        ok, found = sanitized(command, step)
        yield command, None if ok == succeeds and found == sums else f"succeeded {ok}, counted {found}, expected {succeeds}, {sums}"
    good, found = counted_side_by_side()
    yield "steps side by side", None if good and found == (60, 30, 0) else str(found)
    yield "check-gpu skips without a GPU", without_gpu()
    for option, on_path, code, says in [("--only-if-here", ("prometheus", "promtool"), 0, "BIN\n"), ("--only-if-here", ("prometheus",), 3, "there is no Prometheus here"),
                                        ("--now", (), 2, "unknown option"), ("--help", (), 0, "without installing it")]:
        found, printed = fetched(option, *on_path)
        yield f"fetch-prometheus {option} with {on_path}", None if found == code and says in printed else f"exit status {found}: {printed}"
    ok, found, printed = counted(["bash", "-c", "echo the reason; exit 3"])
    yield "a failing build shows its last lines", None if not ok and found == (0, 1, 0) and "the reason" in printed else printed
    ok, found, printed = counted(["/nonexistent/program"])
    yield "a program that is not there fails", None if not ok and found == (0, 1, 0) and "cannot start" in printed else printed
    ok, found, _ = counted(["true"])
    yield "a build that works is not a passed test", None if ok and found == (0, 0, 0) else str(found)


if __name__ == "__main__":
    sys.exit(close(run()))
