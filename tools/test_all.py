"""The steps of tools/test: builds under every sanitizer, lint, every test program, fuzzers, and one table at the end.

Invariant: nothing a step prints is lost (build/logs), and nothing counts as passed unless its runner said so in its closing line
`N passed, N failed, N skipped`. A runner that dies, hangs or says nothing counts as one failure.
"""

import argparse
import concurrent.futures
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build/logs"
VENV = ROOT / "build/venv"
CLOSING = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped\s*$", re.M)
TAIL_LINES = 40
# Whole servers whose bounds are times; everything else runs side by side, one program a core.
ALONE = ("end_to_end_", "kill_sweep_", "serve_streams")
# But these have no bounds that are tight, or wait most of the time; beside others they get more patience.
PATIENT = tuple(f"end_to_end_{suite}_test.py" for suite in (
    "membership", "core_death", "inject", "faults", "vanish", "mirror", "prefix", "fair", "speculation", "structured", "replay", "curve", "gateway", "service", "layouts", "clients", "python_client", "bundle", "install", "container", "choices", "sampling", "template", "experts", "sweep", "trace", "usage",
    "usage_record", "openai", "openai_sampling", "responses"))
# They read the sources and do not depend on the build.
SOURCE_CHECKS = {"tidy", "tidy_test", "tools_test", "metrics_test"}
# CAF's library is not built for TSan and drowns it in false reports, so the actors are left out there.
TSAN_TARGETS = ["scheduler_tests", "gpu_tests", "protocol_tests", "monitoring_tests"]
# Long, and without a thread: TSan has nothing to say about them.
TSAN_FILTERS = {"protocol_tests": "--gtest_filter=-Encoding.*:WireCodec.*:Harmony*:OpenAiResponses*:StopGate.*:DeltaStream*:PlainTemplate.*:Grammar*:ConstrainedReply.*"}
SANITIZER_OPTIONS = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1:check_initialization_order=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    # libzmq and civetweb are not built for TSan: what they hand from thread to thread inside themselves is not ours to judge.
    "TSAN_OPTIONS": "halt_on_error=0:second_deadlock_stack=1:ignore_noninstrumented_modules=1",
}


class Report:
    """Runs steps, keeps their logs, and sums what the runners counted."""

    def __init__(self, logs=LOGS):
        self.logs = logs
        self.rows = []  # (step, seconds, verdict)
        self.wrong = []  # the verdicts of those that did not succeed, and the names of their failed tests
        self.passed = self.failed = self.skipped = 0
        self.lock = threading.Lock()
        self.began = time.monotonic()
        logs.mkdir(parents=True, exist_ok=True)

    def run(self, step, command, timeout, counts=False, env=None):
        """Runs a command; True when it succeeded. `counts`: its closing line is part of the sum."""
        log = self.logs / (re.sub(r"\W+", "-", step) + ".log")
        print(f"{step} …", flush=True)
        start = time.monotonic()
        code = run_logged(command, log, timeout, env)
        seconds = time.monotonic() - start
        output = log.read_text(errors="replace")
        found = CLOSING.findall(output)
        with self.lock:
            verdict, ok = self.judge(code, tuple(map(int, found[-1])) if found else None, counts)
            self.rows.append((step, seconds, verdict))
            print(f"{step}: {verdict}, {seconds:.1f} s", flush=True)
            if not ok:
                self.wrong.append(f"{step}: {verdict} {' '.join(failed_names(output))}".rstrip())
                print(f"--- the last lines of {log}:\n" + "\n".join(output.splitlines()[-TAIL_LINES:]) + "\n---", flush=True)
        return ok

    def judge(self, code, counted, counts):
        """(verdict, whether it succeeded) of an exit code (None: timed out) and a closing line."""
        if counts and counted:
            passed, failed, skipped = counted
            # A runner that failed otherwise than by a failed test, as by a leak found at exit, is a failure of its own.
            failed += 1 if code != 0 and failed == 0 else 0
            self.passed += passed
            self.failed += failed
            self.skipped += skipped
            end = "" if code in (0, 1) else ", timed out" if code is None else f", exit code {code}"
            return f"{passed} passed, {failed} failed, {skipped} skipped{end}", failed == 0 and code == 0
        if code == 0 and not counts:
            return "ok", True
        self.failed += 1
        return "timed out" if code is None else "no closing line" if code == 0 else f"failed, exit code {code}", False

    def skip(self, step, why):
        self.rows.append((step, 0.0, f"skipped: {why}"))
        self.skipped += 1
        print(f"{step}: skipped: {why}", flush=True)

    def close(self):
        width = max(len(step) for step, _, _ in self.rows)
        print("\n" + "step".ljust(width) + "  seconds  verdict")
        for step, seconds, verdict in self.rows:
            print(f"{step.ljust(width)}  {seconds:7.1f}  {verdict}")
        print(f"{'all'.ljust(width)}  {time.monotonic() - self.began:7.1f}\n")
        if self.wrong:
            print("What failed; each step's log is in build/logs:\n" + "\n".join(self.wrong) + "\n")
        print(f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped", flush=True)
        return 0 if self.failed == 0 and self.passed > 0 else 1


def failed_names(output):
    """Up to 20 names of failed tests, as GoogleTest and the Python suites print them."""
    return list(dict.fromkeys(re.findall(r"^(?:\[  FAILED  \]|FAILED|FAIL:?) +([\w./:-]+)", output, re.M)))[:20]


def run_logged(command, log, timeout, env):
    """The exit code, or None after the timeout; then the whole process group is ended."""
    with open(log, "w") as out:
        out.write("$ " + " ".join(map(str, command)) + "\n")
        out.flush()
        try:
            process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
                                       env={**os.environ, **(env or {})}, start_new_session=True)
        except OSError as error:
            out.write(f"cannot start: {error}\n")
            return 127
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return None
        except KeyboardInterrupt:
            os.killpg(process.pid, signal.SIGKILL)
            raise


def build(report, preset, targets, jobs, settings=()):
    return report.run(f"configure {preset}", ["cmake", "--preset", preset, *settings], 300) and report.run(
        f"build {preset}", ["ninja", "-C", f"build/{preset}", f"-j{jobs}", *targets], 3600)


def registered_tests(preset):
    """[(name, command, environment)] that CTest knows in a build."""
    listed = subprocess.run(["ctest", "--test-dir", f"build/{preset}", "--show-only=json-v1"], cwd=ROOT, capture_output=True, text=True, check=True)
    tests = []
    for test in json.loads(listed.stdout)["tests"]:
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        environment = dict(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", []))
        tests.append((test["name"], with_oracles(test.get("command", ["not-built"])), environment))
    return tests


def with_oracles(command):
    """Python tests run in the environment that has the oracles, when there is one."""
    is_python = re.fullmatch(r"python[\d.]*", Path(command[0]).name)
    return [str(VENV / "bin/python"), *command[1:]] if is_python and (VENV / "complete").exists() else command


def side_by_side(jobs, run, items):
    """[run(item)], at most `jobs` at once."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(run, items))


def run_tests(report, preset, tests, jobs):
    def run(test):
        name, command, environment = test
        settings = {**SANITIZER_OPTIONS, "ALTHING_BINARY": str(ROOT / f"build/{preset}/althing"), **environment}
        if name in PATIENT:
            settings["ALTHING_PATIENCE"] = str(max(3, int(settings.get("ALTHING_PATIENCE", 1))))
        report.run(f"{preset} {name}", command, 900, counts=True, env=settings)

    def alone(test):
        return test[0].startswith(ALONE) and test[0] not in PATIENT

    side_by_side(jobs, run, [test for test in tests if not alone(test)])
    side_by_side(1, run, [test for test in tests if alone(test)])


def make_venv(report):
    """The independent implementations that some tests compare with; without them those tests say that they skip, and why."""
    if (VENV / "complete").exists() and (VENV / "complete").stat().st_mtime > (ROOT / "tools/oracles.txt").stat().st_mtime:
        return
    log = LOGS / "oracles.log"
    made = run_logged([sys.executable, "-m", "venv", "--clear", str(VENV)], log, 120, None) == 0
    if made and run_logged([str(VENV / "bin/pip"), "install", "-q", "--only-binary", ":all:", "--timeout", "15", "--retries", "1", "-r",
                            "tools/oracles.txt"], log, 300, None) == 0:
        (VENV / "complete").touch()
    else:
        print(f"The oracles of tools/oracles.txt cannot be installed (no network?); tests that need them will skip. See {log.relative_to(ROOT)}", flush=True)


def fetch_prometheus():
    """For the suite that checks dashboards and alerts against it; without it that suite says that it skips, and why."""
    log = LOGS / "prometheus.log"
    if run_logged(["tools/fetch-prometheus"], log, 180, None) != 0:
        print(f"Prometheus is not here and cannot be downloaded (no network?); tests that need it will skip. See {log.relative_to(ROOT)}", flush=True)


def run_release(report, options):
    if not build(report, "release", [], options.jobs):
        return
    report.run("lint", ["tools/lint", "--jobs", str(options.jobs)], 1800)
    run_tests(report, "release", registered_tests("release"), options.jobs)


def run_sanitizers(report, options):
    if build(report, "asan", [], options.jobs):
        run_tests(report, "asan", [test for test in registered_tests("asan") if test[0] not in SOURCE_CHECKS], options.jobs)
    if build(report, "tsan", TSAN_TARGETS, options.jobs):
        run_tests(report, "tsan", [(target, [f"build/tsan/tests/{target}", *filter(None, [TSAN_FILTERS.get(target)])], {}) for target in TSAN_TARGETS], options.jobs)


def run_fuzzers(report, options):
    if not build(report, "fuzz", ["fuzzers"], options.jobs):
        return

    def fuzz(source):
        name = source.stem
        corpus = ROOT / "build/fuzz/corpus" / name
        corpus.mkdir(parents=True, exist_ok=True)
        seeds = ROOT / "tests/fuzz/corpus" / name
        command = [f"build/fuzz/tests/fuzz/{name}", f"-max_total_time={options.fuzz_seconds}", "-timeout=10", "-rss_limit_mb=4096",
                   f"-artifact_prefix=build/logs/{name}-", str(corpus)] + ([str(seeds)] if seeds.is_dir() else [])
        return report.run(f"fuzz {name}", command, options.fuzz_seconds + 120, env=SANITIZER_OPTIONS)

    report.passed += sum(side_by_side(options.jobs, fuzz, sorted((ROOT / "tests/fuzz").glob("*_fuzz.cpp"))))


def main():
    parser = argparse.ArgumentParser(prog="tools/test", description="Builds, lints and tests everything; logs are in build/logs.")
    parser.add_argument("--quick", action="store_true", help="the release build only: lint, checks of the sources, all test programs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="compilers at once (default: one a core)")
    parser.add_argument("--fuzz-seconds", type=int, default=6, help="time for each fuzz target; 0 leaves fuzzing out (default: 6)")
    options = parser.parse_args()
    report = Report()
    try:
        make_venv(report)
        fetch_prometheus()
        run_release(report, options)
        if not options.quick:
            run_sanitizers(report, options)
            if options.fuzz_seconds > 0:
                run_fuzzers(report, options)
    except KeyboardInterrupt:
        report.failed += 1
        report.rows.append(("interrupted", 0.0, "the rest was not run"))
    return report.close()


if __name__ == "__main__":
    sys.exit(main())
