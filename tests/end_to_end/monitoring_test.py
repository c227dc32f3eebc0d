#!/usr/bin/env python3
"""Dashboards and alert rules against a real Prometheus that scrapes real servers: every expression returns data, each planted fault fires its alert and no other, and a
server that is well beside the sick one fires none. examples/monitoring/start runs Prometheus here as it does for people."""
import json
import math
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tempfile
import urllib.parse
import urllib.request

from harness import PATIENCE, ROOT, Client, Server, conversations, main, wait_for
from membership_test import GROUPS, kill

CASES = conversations(8)
RULES = ROOT / 'monitoring/prometheus'
ALERT_TESTS = ROOT / 'tests/monitoring/alerts'
DASHBOARDS = sorted((ROOT / 'monitoring/grafana').glob('*.json'))
PROGRAMS = subprocess.run([ROOT / 'tools/fetch-prometheus', '--only-if-here'], capture_output=True, text=True)
BOARD_VARIABLES = {'$__rate_interval': '30s', '$__range': '5m', '$instance': '.*', '$layer': '0'}
# A rank in quarantine is down, and the server degraded: these two follow, half a minute and a minute later, however fast the machine is.
FOLLOWING = {'AlthingRankDown', 'AlthingDegraded'}

# Expressions that have no data even after everything that happens here, and why. One that has data after all is an error.
SILENT = dict.fromkeys((f'overview: {panel} {query}' for panel, queries in (
    ('Answers', 'A'), ('Time to the first token over HTTP', 'AB'), ('Tokens over HTTP', 'A'), ('Open requests', 'A'), ('Broken off', 'A'), ('Bytes sent', 'A'), ('Refused over HTTP', 'AB'))
                        for query in queries), 'no HTTP gateway is scraped here')


def promtool(*arguments, folder=ROOT):
    return subprocess.run([pathlib.Path(PROGRAMS.stdout.strip()) / 'promtool', *map(str, arguments)], cwd=folder, capture_output=True, text=True, timeout=120 * PATIENCE)


class Prometheus:
    """examples/monitoring/start over servers, looking every second."""

    def __init__(self, *servers):
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            self.port = probe.getsockname()[1]
        self.address = f'127.0.0.1:{self.port}'
        self.log = tempfile.NamedTemporaryFile('w+', prefix='althing-test-')
        self.temporary = tempfile.TemporaryDirectory(prefix='althing-test-')
        files = [word for server in servers for word in ('--ready-file', str(server.ready_file))]
        self.process = subprocess.Popen([str(ROOT / 'examples/monitoring/start'), '--listen', self.address, '--interval', '1s', *files],
                                        stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, env={**os.environ, 'TMPDIR': self.temporary.name})

    def said(self):
        return pathlib.Path(self.log.name).read_text()

    def __enter__(self):
        wait_for('Prometheus is up', lambda: 'Ctrl-C' in self.said() or self.process.poll() is not None, 40)
        assert self.process.poll() is None, self.said()
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        code = self.process.wait(20 * PATIENCE)
        left = list(pathlib.Path(self.temporary.name).iterdir())
        self.temporary.cleanup()
        if kind is None:
            assert code == 0 and 'Prometheus has stopped.' in self.said() and not left, (code, self.said(), left)
            with socket.socket() as probe:
                assert probe.connect_ex(('127.0.0.1', self.port)) != 0, 'Prometheus outlived its script'

    def get(self, path, **parameters):
        with urllib.request.urlopen(f'http://{self.address}{path}?{urllib.parse.urlencode(parameters)}', timeout=10) as answer:
            return json.load(answer)['data']

    def query(self, expression):
        """[value] of an expression now. NaN is no data."""
        data = self.get('/api/v1/query', query=expression)
        samples = [data['result']] if data['resultType'] == 'scalar' else [sample['value'] for sample in data['result']]
        return [float(value) for _, value in samples if not math.isnan(float(value))]

    def rules(self):
        return [rule for group in self.get('/api/v1/rules')['groups'] for rule in group['rules']]

    def firing(self):
        """{(alert, instance)}"""
        return {(alert['labels']['alertname'], alert['labels']['instance']) for alert in self.get('/api/v1/alerts')['alerts'] if alert['state'] == 'firing'}


def answering(expression):
    """The expression with each comparison answering 0 or 1 instead of leaving out what it is not true of: then it has data as soon as the series have."""
    return ''.join(piece if piece.startswith('{') else re.sub(r'(==|!=|>=|<=|>|<)', r'\1 bool', piece) for piece in re.split(r'(\{[^}]*\})', expression))


def board_expressions():
    """{where: expression} of every panel, with the variables as somebody would choose them."""
    found = {}
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())['panels']:
            for target in panel.get('targets', []):
                expression = target['expr']
                for name, value in BOARD_VARIABLES.items():
                    expression = expression.replace(name, value)
                found[f'{path.stem}: {panel["title"]} {target["refId"]}'] = expression
    return found


def configuration_and_rules_are_valid():
    checked = promtool('check', 'config', RULES / 'prometheus.yml')
    assert checked.returncode == 0 and '5 rule files found' in checked.stdout, checked
    with tempfile.TemporaryDirectory(prefix='althing-test-') as folder:
        broken = pathlib.Path(folder) / 'ranks.yml'
        broken.write_text((RULES / 'alerts/ranks.yml').read_text().replace('althing_degraded == 1', 'althing_degraded == == 1'))
        assert promtool('check', 'rules', broken).returncode != 0, 'the check cannot fail'


def every_alert_fires_and_stays_quiet_as_its_cases_say():
    ran = promtool('test', 'rules', *sorted(ALERT_TESTS.glob('*.yml')))
    assert ran.returncode == 0 and ran.stdout.count('SUCCESS') == len(list(ALERT_TESTS.glob('*.yml'))), ran.stdout + ran.stderr


def a_threshold_that_moves_fails_its_case():
    """The control: with every alert about load out of reach, each of them is missed by name."""
    with tempfile.TemporaryDirectory(prefix='althing-test-') as folder:
        copy = pathlib.Path(folder)
        shutil.copytree(RULES, copy / 'monitoring/prometheus')
        (copy / 'tests/monitoring/alerts').mkdir(parents=True)
        shutil.copy(ALERT_TESTS / 'load_test.yml', copy / 'tests/monitoring/alerts')
        rules = copy / 'monitoring/prometheus/alerts/load.yml'
        load = rules.read_text()
        rules.write_text(re.sub(r'> [\d.]+(?=\n| and)', '> 1e9', load))
        ran = promtool('test', 'rules', copy / 'tests/monitoring/alerts/load_test.yml')
        names = set(re.findall(r'- alert: (\w+)', load))
        assert ran.returncode != 0 and names and set(re.findall(r'alertname: (\w+)', ran.stdout + ran.stderr)) == names, ran.stdout + ran.stderr


def the_script_says_what_is_missing():
    def refused(*arguments):
        run = subprocess.run([ROOT / 'examples/monitoring/start', *arguments], capture_output=True, text=True, timeout=20 * PATIENCE)
        return run.returncode, run.stderr
    for arguments, code, says in ((['--colour'], 2, 'unknown option --colour'), (['--server'], 2, 'wants a value'), (['--server', 'nowhere'], 2, 'no HOST:PORT'),
                                  (['--interval', 'soon'], 2, 'say something like 5s'), (['--ready-file', '/nowhere/ready'], 3, 'no ready file'),
                                  (['--server', '127.0.0.1:1'], 3, 'start one with')):
        got, text = refused(*arguments)
        assert got == code and says in text, (arguments, got, text)
    with Server(ranks=1) as server:
        got, text = refused('--ready-file', str(server.ready_file), '--listen', server.metrics_address)
        assert got == 6 and 'answers on' in text, (got, text)
        # Without the tier nothing is scraped in vain, and it says so.
        with Prometheus(server) as prometheus:
            wait_for('it is scraped', lambda: prometheus.query('up == 1'))
            assert 'has no series for each expert' in prometheus.said() and len(prometheus.query('up')) == 1, prometheus.said()


class Load:
    """Streams without a pause, however often ranks and core die."""

    def __init__(self, client):
        self.client, self.count = client, 0

    def step(self):
        if len(self.client.open()) < 3:
            self.count += 1
            self.client.submit(f'load-{self.count}', CASES[self.count % len(CASES)]['messages'], sampling={'completion_tokens_max': 120, 'ignore_stop': True})
        self.client.step(0.01)

    def until(self, what, condition, seconds=15.0):
        return wait_for(what, lambda: self.step() or condition(), seconds)


def expressions_return_data_and_planted_faults_fire_their_alerts():
    with Server('--expert-metrics', '--restarts-max', '1', '--quarantine-seconds', '120', *GROUPS, ranks=2) as sick, \
            Server('--expert-metrics', '--expert-series-max', '10', ranks=1) as well, \
            Prometheus(sick, well) as prometheus, Client(sick.endpoint) as client, Client(well.endpoint) as other:
        load, calm = Load(client), Load(other)
        too_many_series = {('AlthingExpertTierDisabled', well.metrics_address)}
        load.until('streams of both', lambda: calm.step() or (load.count > 3 and calm.count > 3))
        # An increase is seen only by who saw what was before.
        load.until('both pages of both servers were scraped more than once', lambda: calm.step() or len(prometheus.query('count_over_time(up[1m]) > 2')) == 4)
        load.until('what the second server lacks is told', lambda: prometheus.firing() == too_many_series)
        plant_faults(prometheus, sick, load)
        # The wrong target would be the other server: it was under load all the time.
        assert {alert for alert in prometheus.firing() if alert[1] != sick.metrics_address} == too_many_series, prometheus.firing()
        load.until('one more look', lambda: calm.step() or prometheus.query('changes(althing_generation_tokens_total[3s]) > 1'))
        judge_expressions(prometheus)
        client.finish()
        assert all(stream.end['type'] == 'done' for stream in client.streams.values())
        other.finish()


def plant_faults(prometheus, sick, load):
    """Kills the core, then a rank, then that rank until it is in quarantine; each time what fires must grow by the alert of just that."""
    fired = set()
    for role, alert in (('core', 'AlthingCoreRestarted'), ('rank1', 'AlthingRankLost'), ('rank1', 'AlthingRestartStorm')):
        epoch = sick.epoch()
        kill(sick, role)
        fired.add((alert, sick.metrics_address))
        load.until(f'{alert} fires', lambda: fired <= prometheus.firing())
        if alert != 'AlthingRestartStorm':
            load.until('the full grid serves', lambda: sick.ready(epoch if role != 'core' else 0) and len(sick.children()) == 3 and sick.metric('althing_degraded') == 0)
        got = {name for name, instance in prometheus.firing() if instance == sick.metrics_address}
        assert got - (FOLLOWING if alert == 'AlthingRestartStorm' else set()) == {name for name, _ in fired}, (role, got)


def judge_expressions(prometheus):
    rules = {f'rule {rule["name"]}': rule['query'] for rule in prometheus.rules()}
    assert len(rules) > 25 and not [rule for rule in prometheus.rules() if rule['health'] != 'ok'], prometheus.rules()
    everything = board_expressions() | rules
    empty = {where for where, expression in everything.items() if not prometheus.query(answering(expression))}
    missing = [f'{where}: {everything[where]}' for where in sorted(empty - set(SILENT))]
    assert not missing, 'no data for\n' + '\n'.join(missing)
    assert set(SILENT) <= empty, f'SILENT is stale: {sorted(set(SILENT) - empty)}'
    assert not prometheus.query(answering('althing_no_such_metric > 0')), 'the check cannot fail'
    print(f'  {len(everything)} expressions')


if __name__ == '__main__':
    main(configuration_and_rules_are_valid, every_alert_fires_and_stays_quiet_as_its_cases_say, a_threshold_that_moves_fails_its_case, the_script_says_what_is_missing,
         expressions_return_data_and_planted_faults_fire_their_alerts, missing='' if PROGRAMS.returncode == 0 else PROGRAMS.stderr.strip())
