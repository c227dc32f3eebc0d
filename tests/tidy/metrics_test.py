#!/usr/bin/env python3
"""What is written about metrics is true: dashboards, rules, their tests, runbook and pages name metrics, alerts and flags that exist, and miss none.

Needs no Prometheus; what expressions return is tests/end_to_end/monitoring_test.py's to check. Every check is proved by a plant: the same tree with one lie in it.
Closes with `N passed, N failed, N skipped`.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from verdict import close

ROOT = Path(__file__).resolve().parents[2]
DASHBOARDS = [f"monitoring/grafana/{name}.json" for name in ("overview", "experts", "failures")]
ALERTS, RECORDED = "monitoring/prometheus/alerts/", "monitoring/prometheus/recording_rules.yml"
RUNBOOK, PAGE = "docs/runbook.md", "docs/monitoring.md"
WORD = re.compile(r"(?<![\w:.-])althing_[a-z0-9_]+(?![\w:])")
RECORDED_NAME = re.compile(r"\b\w+:althing_\w+:\w+")
CASES = ("fires", "stays quiet", "wrong target")

# What programs import, which pages show.
PACKAGES = {path.name for path in (ROOT / "examples/python").iterdir() if path.is_dir()}
# Metrics that no dashboard shows, and why.
NOT_SHOWN = {}


def tree():
    """{path: text} of everything that this looks at."""
    wanted = [path for pattern in ("*.md", "docs/*.md", "monitoring/*.cpp", "monitoring/prometheus/**/*.yml", "monitoring/grafana/*.json", "tests/monitoring/alerts/*.yml",
                                   "actors/settings.cpp", "cmake/*.cmake", "**/CMakeLists.txt") for path in ROOT.glob(pattern)]
    files = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in wanted}
    return {path: text for path, text in files.items() if not path.startswith("build/")}


def metrics_of(files):
    """({every metric of the sources}, {every name a sample of theirs may have})"""
    sources = "\n".join(text for path, text in files.items() if path.startswith("monitoring/") and path.endswith(".cpp"))
    names = set(re.findall(r'"(althing_[a-z0-9_]+)"', sources))
    histograms = set(re.findall(r'histogram\(\s*registry,\s*"(althing_\w+)"|BuildHistogram\(\)\s*\.Name\("(althing_\w+)"', sources))
    histograms = {name for pair in histograms for name in pair if name}
    return names, names | {name + suffix for name in histograms for suffix in ("_bucket", "_sum", "_count")}


def expressions(files):
    """{dashboard path: [expression]}"""
    return {path: [target["expr"] for panel in json.loads(files[path])["panels"] for target in panel.get("targets", [])] for path in DASHBOARDS}


def below(files, folder):
    return "\n".join(text for path, text in files.items() if path.startswith(folder))


def alerts_of(files):
    return dict(re.findall(r"- alert: (\w+)\n(.*?)(?=\n *- alert:|\n  - name:|\n# |\Z)", below(files, ALERTS), re.S))


def unknown_names(files):
    """names of metrics exist"""
    _, samples = metrics_of(files)
    cmake = {name for path, text in files.items() if path.endswith((".cmake", "CMakeLists.txt")) for name in re.findall(r"althing_\w+", text)}
    records = set(re.findall(r"- record: (\S+)", files[RECORDED]))
    for path, text in files.items():
        if path.endswith((".cpp", ".cmake", "CMakeLists.txt")):
            continue
        for name in sorted(set(RECORDED_NAME.findall(text)) - records):
            yield f"{path}: {name} is recorded by no rule"
        allowed = samples | (cmake | PACKAGES if path.endswith(".md") else set())
        for name in sorted(set(WORD.findall(RECORDED_NAME.sub("", text))) - allowed):
            yield f"{path}: {name} is no metric of the sources"


def unexplained(files):
    """every metric is in docs/monitoring.md"""
    said = set(WORD.findall(files.get(PAGE, "")))
    for name in sorted(metrics_of(files)[0] - said):
        yield f"{PAGE} does not say what {name} is"


def unseen(files):
    """every metric is on a dashboard, or explicitly not"""
    names, _ = metrics_of(files)
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) if name not in names else name
             for every in expressions(files).values() for expression in every for name in WORD.findall(expression)}
    for name in sorted(names - shown - set(NOT_SHOWN)):
        yield f"{name} is on no dashboard; show it, or say in NOT_SHOWN why not"
    for name in sorted(set(NOT_SHOWN) & shown | set(NOT_SHOWN) - names):
        yield f"NOT_SHOWN names {name}, which is shown, or is none"


def alert_rules(files):
    """every alert has a severity, a heading in the runbook, and its three cases"""
    headings = re.findall(r"^## (.+)$", files[RUNBOOK], re.M)
    cases = below(files, "tests/monitoring/alerts/")
    alerts = alerts_of(files)
    for name, body in alerts.items():
        if not re.search(r"severity: (critical|warning|info)\b", body):
            yield f"{name} has no severity"
        if f"runbook_url: docs/runbook.md#{name.lower()}\n" not in body + "\n" or name not in headings:
            yield f"{name}: its runbook_url leads to no heading of {RUNBOOK}"
        for kind in CASES:
            found = re.search(rf'- name: "?{name} {kind}\b.*?(?=\n  - name:|\Z)', cases, re.S)
            if not found or f"alertname: {name}\n" not in found[0].replace(",", "\n") or ("exp_alerts: []" in found[0]) == (kind == "fires"):
                yield f"{name}: tests/monitoring/alerts has no case in which it {kind}"
    for name in sorted(set(headings) - set(alerts)):
        yield f"{RUNBOOK}: {name} is no alert"


def records_used(files):
    """every recorded series is compared by an alert"""
    for name in re.findall(r"- record: (\S+)", files[RECORDED]):
        if name not in below(files, ALERTS):
            yield f"{name} is used by no alert"


def flags(files):
    """flags that the runbook names exist"""
    known = set(re.findall(r'"(?:--)?([a-z][a-z-]+)"', files["actors/settings.cpp"]))
    for flag in sorted(set(re.findall(r"`(?:[^`\n]* )?--([a-z][a-z-]+)", files[RUNBOOK])) - known):
        yield f"{RUNBOOK}: althing serve has no --{flag}"


def dashboards(files):
    """panels have a place of their own, and use the dashboard's variables"""
    for path in DASHBOARDS:
        board, taken = json.loads(files[path]), set()
        variables = {variable["name"] for variable in board["templating"]["list"]}
        for panel in board["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            if cells & taken or at["x"] + at["w"] > 24:
                yield f"{path}: {panel['title']} lies on another panel, or beyond the edge"
            taken |= cells
            if panel["type"] != "row" and not (panel["targets"] and panel["description"]):
                yield f"{path}: {panel['title']} has no query or no description"
        if len({panel["id"] for panel in board["panels"]}) < len(board["panels"]):
            yield f"{path}: two panels have one id"
        for name in sorted(set(re.findall(r"\$\{?([a-z_]\w*)", " ".join(expressions(files)[path]))) - variables - {"__rate_interval", "__range"}):
            yield f"{path}: there is no variable ${name}"


CHECKS = (unknown_names, unexplained, unseen, alert_rules, records_used, flags, dashboards)

# (check, file, what is replaced there, by what, part of what is said then)
PLANTS = [
    (unknown_names, DASHBOARDS[0], "althing_requests_running", "althing_requests_runing", "althing_requests_runing is no metric"),
    (unknown_names, ALERTS + "ranks.yml", "althing_quarantined > 0", "althing_quarantine > 0", "althing_quarantine is no metric"),
    (unknown_names, ALERTS + "load.yml", "instance:althing_kv_blocks:used_ratio", "instance:althing_kv_blocks:used", "is recorded by no rule"),
    (unknown_names, RECORDED, "althing_recovery_seconds_count[", "althing_recovery_seconds_counts[", "is no metric"),
    (unknown_names, "README.md", "althing_degraded", "althing_degrade", "README.md: althing_degrade"),
    (unknown_names, "tests/monitoring/alerts/load_test.yml", "althing_kv_blocks{", "althing_kv_block{", "althing_kv_block is no metric"),
    (unexplained, PAGE, "althing_preemptions_total", "preemptions", "does not say what althing_preemptions_total is"),
    (unseen, DASHBOARDS[2], "althing_spares", "up", "althing_spares is on no dashboard"),
    (unseen, "monitoring/metrics.cpp", '"althing_spares"', '"althing_spares_new"', "althing_spares_new is on no dashboard"),
    (alert_rules, ALERTS + "load.yml", "severity: warning", "severity: loud", "has no severity"),
    (alert_rules, ALERTS + "load.yml", "#althingqueuegrows", "#althingqueue", "AlthingQueueGrows: its runbook_url"),
    (alert_rules, RUNBOOK, "## AlthingDegraded", "## AlthingDegrading", "AlthingDegraded: its runbook_url"),
    (alert_rules, RUNBOOK, "## AlthingDegraded", "## AlthingDegraded\n\n## AlthingTired", "AlthingTired is no alert"),
    (alert_rules, "tests/monitoring/alerts/load_test.yml", "AlthingTokensSlow wrong target", "AlthingTokensSlow", "AlthingTokensSlow: tests/monitoring/alerts"),
    (alert_rules, "tests/monitoring/alerts/load_test.yml", "alertname: AlthingTokensSlow", "alertname: AlthingOther", "AlthingTokensSlow: tests/monitoring/alerts"),
    (records_used, ALERTS + "load.yml", "instance:althing_kv_blocks:used_ratio", "up", "is used by no alert"),
    (flags, RUNBOOK, "--kv-mirror-mib", "--kv-mirror-gib", "no --kv-mirror-gib"),
    (dashboards, DASHBOARDS[0], '"y": 1,', '"y": 0,', "lies on another panel"),
    (dashboards, DASHBOARDS[1], "$layer", "$layers", "there is no variable $layers"),
]


def run():
    """(name, problem or None)"""
    files = tree()
    for check in CHECKS:
        found = list(check(files))
        yield check.__doc__, "\n  ".join(found) if found else None
    for check, path, old, new, says in PLANTS:
        name = f"{check.__name__} finds {new!r} in {path}"
        if old not in files.get(path, ""):
            yield name, f"there is no {old!r} to replace"
            continue
        found = list(check({**files, path: files[path].replace(old, new)}))
        yield name, None if any(says in problem for problem in found) else f"found only {found}"
    missing = {check.__name__ for check in CHECKS} - {check.__name__ for check, *_ in PLANTS}
    yield "every check has a plant", str(missing) if missing else None
    made = subprocess.run([sys.executable, ROOT / "tools/grafana_dashboards.py", "--check"], capture_output=True, text=True)
    yield "dashboards are what tools/grafana_dashboards.py makes", None if made.returncode == 0 else made.stdout + made.stderr


if __name__ == "__main__":
    sys.exit(close(run()))
