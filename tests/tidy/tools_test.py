#!/usr/bin/env python3
"""Checks that tools/test counts honestly: a runner that fails, dies, hangs or says nothing can never look like a pass.

Runs small shell commands through the report of tools/test_all.py. Closes with `N passed, N failed, N skipped`.
"""

import contextlib
import io
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from test_all import Report  # noqa: E402

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


def counted(command, **options):
    """(succeeded, (passed, failed, skipped), what was printed) of one step."""
    with tempfile.TemporaryDirectory(prefix="althing-tools-") as logs, contextlib.redirect_stdout(io.StringIO()) as printed:
        report = Report(Path(logs))
        ok = report.run("a step", command, 2, **options)
        report.close()
    return ok, (report.passed, report.failed, report.skipped), printed.getvalue()


def run():
    for command, succeeds, sums in RUNNERS:
        ok, found, printed = counted(["bash", "-c", command], counts=True)
        closing = "%d passed, %d failed, %d skipped" % sums
        good = ok == succeeds and found == sums and printed.rstrip().endswith(closing)
        yield command, None if good else f"succeeded {ok}, counted {found}, expected {succeeds}, {sums}"
    ok, found, printed = counted(["bash", "-c", "echo the reason; exit 3"])
    yield "a failing build shows its last lines", None if not ok and found == (0, 1, 0) and "the reason" in printed else printed
    ok, found, printed = counted(["/nonexistent/program"])
    yield "a program that is not there fails", None if not ok and found == (0, 1, 0) and "cannot start" in printed else printed
    ok, found, _ = counted(["true"])
    yield "a build that works is not a passed test", None if ok and found == (0, 0, 0) else str(found)


def main():
    passed = failed = 0
    for name, problem in run():
        passed += problem is None
        failed += problem is not None
        if problem is not None:
            print(f"FAILED {name}: {problem}")
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 0 if failed == 0 and passed > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
