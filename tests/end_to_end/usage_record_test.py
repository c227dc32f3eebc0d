#!/usr/bin/env python3
"""Accounting from outside: what a model weighs, as `althing account` says it; what each request has used, whatever happens to the server meanwhile."""
import collections
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import tempfile

from harness import BINARY, PATIENCE, ROOT, TINY, Client, Server, ServerEnded, conversations, main, wait_for

CONFIG = json.loads((TINY / 'config.json').read_text())
EXPERTS_OF_A_TOKEN = CONFIG['num_hidden_layers'] * CONFIG['num_experts_per_tok']
COUNTS = ('prompt_tokens', 'completion_tokens', 'computed_tokens', 'recomputed_tokens', 'expert_tokens', 'recomputed_expert_tokens')


def account(*words):
    done = subprocess.run([str(BINARY), 'account', *map(str, words)], capture_output=True, text=True, timeout=60 * PATIENCE)
    return done.returncode, done.stdout, done.stderr


def a_model_is_counted_three_ways_apart():
    for size, parameters, active in (('20b', 20_914_757_184, 3_608_307_264), ('120b', 116_829_156_672, 5_132_849_472)):
        code, out, complaint = account(f'dummy:{size}', '--json', '--context', 1000, '--bandwidth-gbps', 1000)
        assert code == 0, complaint
        found = json.loads(out)
        weights, parts = found['weights'], found['parts'].values()
        assert (weights['parameters'], weights['active_parameters']) == (parameters, active), found
        assert all(sum(part[count] for part in parts) == weights[count] for count in weights), found
        assert found['read_bytes'] == weights['read_bytes'] + found['kv_read_bytes'] == found['roofline']['read_bytes']
        assert abs(found['roofline']['floor_ms'] - found['read_bytes'] / 1e9) < 1e-5, found['roofline']  # 10^12 bytes a second
        assert found['gradients'] == 'not applicable at inference'
        rounded = json.loads(account(f'dummy:{size}', '--json', '--dense', 'fp8')[1])['weights']
        assert rounded['read_bytes'] < weights['read_bytes'] and rounded['stored_bytes'] == weights['stored_bytes']
    code, out, _ = account(TINY)
    assert code == 0 and '19566576' in out and 'not applicable at inference' in out and 'an assumption' in out, out


def what_cannot_be_counted_is_one_line():
    for code, needle, *words in ((2, 'use 20b or 120b', 'dummy:7b'), (2, "--dense is 'fp4'", TINY, '--dense', 'fp4'), (2, 'at most 2047', TINY, '--context', 2048),
                                 (2, '--bandwidth-gbps', TINY, '--bandwidth-gbps', 0), (3, '/nowhere', '/nowhere')):
        found, out, complaint = account(*words)
        assert found == code and needle in complaint and not out and 'Traceback' not in complaint, (words, found, complaint)


class Kept:
    """A server that keeps a usage log, and what it wrote there."""

    def __init__(self, *flags, prices=''):
        self.folder = tempfile.TemporaryDirectory(prefix='althing-usage-')
        self.path = pathlib.Path(self.folder.name, 'usage.jsonl')
        cost = pathlib.Path(self.folder.name, 'cost.toml')
        cost.write_text(prices)
        self.server = Server('--usage-log', self.path, '--cost-file', cost, *flags)

    def __enter__(self):
        self.server.__enter__()
        return self

    def __exit__(self, *why):
        self.server.__exit__(*why)
        self.folder.cleanup()

    def records(self, count):
        """{request id: record}, once there are so many."""
        lines = wait_for(f'{count} records', lambda: len(self.lines()) >= count and self.lines())
        assert len(lines) == count, lines
        return {record['request_id']: record for record in map(json.loads, lines)}

    def lines(self):
        return self.path.read_text().splitlines()

    def tenants(self):
        code, body = self.server.get('/usage.json')
        assert code == 200, (code, body)
        return {row['tenant']: row for row in json.loads(body)['tenants']}

    def metric_of(self, name, tenant):
        found = [line for line in self.server.get('/metrics')[1].splitlines() if line.startswith(f'althing_tenant_{name}{{tenant="{tenant}"}} ')]
        assert len(found) == 1, (name, tenant, found)
        return float(found[0].rsplit(' ', 1)[1])


def near(a, b, unit):
    return abs(a - b) <= unit + 1e-6 * max(abs(a), abs(b))


def check_sums(kept, records):
    """Records, totals and metrics of one core tell the same story."""
    server = kept.server
    wait_for('all steps are counted', lambda: server.metric('althing_layer_rank_tokens_total') == server.metric('althing_step_tokens_total') * EXPERTS_OF_A_TOKEN)
    assert sum(r['computed_tokens'] for r in records.values()) == server.metric('althing_step_tokens_total')
    assert sum(r['expert_tokens'] + r['recomputed_expert_tokens'] for r in records.values()) == server.metric('althing_layer_rank_tokens_total')
    seconds = server.metric('althing_device_seconds_total') - server.metric('althing_device_unattributed_seconds_total')
    assert near(sum(r['device_ms'] for r in records.values()) / 1e3, seconds, 1e-6), (records, seconds)
    assert sum(r['recomputed_tokens'] for r in records.values()) == server.metric('althing_kv_recomputed_tokens_total')
    by_tenant = collections.defaultdict(list)
    for record in records.values():
        by_tenant[record['tenant']].append(record)
        assert record['expert_tokens'] == (record['computed_tokens'] - record['recomputed_tokens']) * EXPERTS_OF_A_TOKEN, record
    totals = kept.tenants()
    assert totals.keys() == by_tenant.keys(), (totals, by_tenant)
    for tenant, theirs in by_tenant.items():
        row = totals[tenant]
        assert row['requests'] == len(theirs) == kept.metric_of('requests_total', tenant)
        assert all(row[count] == sum(r[count] for r in theirs) for count in COUNTS), (row, theirs)
        assert all(near(row[sum_], sum(r[sum_] for r in theirs), unit * len(theirs)) for sum_, unit in (('device_ms', 1e-6), ('kv_byte_seconds', 1e-3), ('price_usd', 1e-6))), (row, theirs)
        assert kept.metric_of('completion_tokens_total', tenant) == row['completion_tokens'] and near(kept.metric_of('price_usd_total', tenant), row['price_usd'], 1e-6)


def records_of_two_tenants_add_up():
    prices = 'gpu_hour_usd = 36.0\nper_million_prompt_tokens_usd = 1000  # a lot\nper_million_completion_tokens_usd = 2000\nkv_gib_hour_usd = 5\n'
    with Kept(prices=prices) as kept, Client(kept.server.endpoint) as client:
        cases = conversations(4)
        client.submit('blue-1', cases[0]['messages'], tenant='blue')
        client.submit('blue-2', cases[1]['messages'], tenant='blue', sampling={'n': 2, 'temperature': 1.0, 'seed': 3, 'completion_tokens_max': 12})
        client.submit('red-1', cases[2]['messages'], tenant='red-7', sampling={'completion_tokens_max': 5})
        client.submit('nobody', cases[3]['messages'], sampling={'completion_tokens_max': 3})
        client.submit('red-2', prompt_tokens=[5] * 300, tenant='red-7', sampling={'completion_tokens_max': 1500, 'ignore_stop': True})
        wait_for('the long one has begun', lambda: client.step() or client.streams['red-2'].tokens)
        client.send('cancel', request_id='red-2')
        client.finish()
        records = kept.records(5)
        assert {key: record['tenant'] for key, record in records.items()} == {'blue-1': 'blue', 'blue-2': 'blue', 'red-1': 'red-7', 'red-2': 'red-7', 'nobody': 'default'}
        for key, record in records.items():
            end = client.streams[key].end
            if key == 'red-2':
                assert (record['reason'], record['error'], end['error']['code']) == ('cancelled', 'cancelled', 'cancelled'), (record, end)
                continue
            assert record['reason'] == end['reason'] and 'error' not in record and 'taken_over' not in record, record
            told = {count: number for count, number in end['usage'].items() if count not in ('reasoning_tokens', 'cached_tokens', 'miss')}  # the last two are choice 0's there
            assert {count: record[count] for count in told} == told, (record, end)
            assert record['cached_tokens'] >= end['usage']['cached_tokens'], (record, end)
        for record in records.values():
            assert record['device_ms'] > 0 and record['kv_byte_seconds'] > 0 and record['seconds'] > 0 and record['recomputed_tokens'] == 0, record
            price = (record['device_ms'] / 3.6e6 * 36 + record['prompt_tokens'] * 1e-3 + record['completion_tokens'] * 2e-3 + record['kv_byte_seconds'] / 2**30 / 3600 * 5)
            assert near(record['price_usd'], price, 1e-6), (record, price)
        assert all(len(line.rsplit('"price_usd":', 1)[1].split('}')[0].split('.')[1]) == 6 for line in kept.lines())
        assert records['blue-2']['choices'] == 2 and records['blue-1']['choices'] == 1
        assert kept.path.stat().st_mode & 0o777 == 0o600
        assert kept.server.metric('althing_usage_records_total') == 5
        check_sums(kept, records)


def deaths_cost_no_record_and_show_in_it():
    with Kept('--kv-mirror-mib', 0) as kept, Client(kept.server.endpoint) as client:
        long = {'completion_tokens_max': 400, 'ignore_stop': True}
        client.submit('over', prompt_tokens=[7] * 100, tenant='blue', sampling=long)
        client.submit('too', prompt_tokens=[8] * 50, sampling=long)
        wait_for('both have begun', lambda: client.step() or all(len(stream.tokens) > 40 for stream in client.streams.values()))
        os.kill(kept.server.children()['rank1'], signal.SIGKILL)
        client.finish()
        records = kept.records(2)
        for key, record in records.items():
            assert record['completion_tokens'] == 400 and 'taken_over' not in record, record
            assert record['recomputed_tokens'] >= record['prompt_tokens'] + 40 and record['recomputed_expert_tokens'] > 0, record
            # A position each, but for the last token, which is drawn and not computed.
            assert record['computed_tokens'] - record['recomputed_tokens'] == record['prompt_tokens'] + 399, record
        check_sums(kept, records)

        client.submit('again', prompt_tokens=[9] * 60, tenant='blue', sampling=long)
        wait_for('it has begun', lambda: client.step() or len(client.streams['again'].tokens) > 40)
        os.kill(kept.server.children()['core'], signal.SIGKILL)
        client.finish()
        record = kept.records(3)['again']
        assert record['taken_over'] and record['tenant'] == 'blue' and record['completion_tokens'] == 400, record
        assert set(kept.tenants()) == {'blue'} and kept.tenants()['blue']['requests'] == 1, 'totals begin anew with a core'


def the_clients_name_their_tenant():
    with Kept() as kept:
        for command in ([BINARY, 'chat', '--once', '12 + 30'], [sys.executable, ROOT / 'examples/python/chat.py', '12 + 30']):
            done = subprocess.run([*map(str, command), '--endpoint', kept.server.endpoint, '--tenant', 'blue'], capture_output=True, text=True, timeout=60 * PATIENCE, stdin=subprocess.DEVNULL)
            assert done.returncode == 0 and '42' in done.stdout, done
        wait_for('both are counted', lambda: kept.tenants().keys() == {'blue'} and kept.tenants()['blue']['requests'] == 2)


def a_stop_writes_down_what_is_open():
    with Kept('--drain-seconds', 0) as kept, Client(kept.server.endpoint) as client:
        client.submit('cut', prompt_tokens=[7] * 100, sampling={'completion_tokens_max': 1500, 'ignore_stop': True})
        wait_for('it has begun', lambda: client.step() or len(client.streams['cut'].tokens) > 20)
        kept.server.process.send_signal(signal.SIGTERM)
        wait_for('the server ends', lambda: kept.server.process.poll() is not None)
        record = kept.records(1)['cut']
        assert (record['reason'], record['error']) == ('cancelled', 'draining') and record['computed_tokens'] >= 120 and record['device_ms'] > 0, record


def a_full_disk_costs_lines_and_nothing_else():
    with Kept('--tenants-max', 2) as kept, Client(kept.server.endpoint) as client:
        for number in range(3):
            client.submit(f'before-{number}', prompt_tokens=[5, 6], tenant=f't{number}', sampling={'completion_tokens_max': 2})
            client.finish()
        kept.records(3)
        core, size = kept.server.children()['core'], kept.path.stat().st_size
        _, hard = resource.prlimit(core, resource.RLIMIT_FSIZE)
        resource.prlimit(core, resource.RLIMIT_FSIZE, (size + 10, hard))
        client.submit('lost', prompt_tokens=[5, 6], sampling={'completion_tokens_max': 2})
        client.finish()
        assert client.streams['lost'].end['type'] == 'done'
        wait_for('the loss is counted', lambda: 'althing_usage_records_total{outcome="lost"} 1' in kept.server.get('/metrics')[1])
        assert kept.path.stat().st_size == size
        resource.prlimit(core, resource.RLIMIT_FSIZE, (hard, hard))
        client.submit('after', prompt_tokens=[5, 6], tenant='t0', sampling={'completion_tokens_max': 2})
        client.finish()
        assert 'lost' not in kept.records(4) and 'usage_log_writes_again' in kept.server.log()  # what it said before did not fit on the disk either
        rows = kept.tenants()
        assert {tenant: row['requests'] for tenant, row in rows.items()} == {'t0': 2, 't1': 1, 'other': 2}, rows
        for tenant, code in (('a b', 'invalid_argument'), ('a' * 65, 'too_large')):
            client.submit(f'bad-{code}', prompt_tokens=[5], tenant=tenant)
            client.finish()
            error = client.streams[f'bad-{code}'].end['error']
            assert error['code'] == code and error['field'] == 'tenant', error


def prices_and_logs_that_cannot_be_are_refused_before_anything_starts():
    with tempfile.TemporaryDirectory(prefix='althing-usage-') as folder:
        cost = pathlib.Path(folder, 'cost.toml')
        for text, needle in (('gpu_hour_usd = 3\nper_token = 1\n', "line 2: there is no price 'per_token'"), ('kv_gib_hour_usd = cheap\n', "line 1: kv_gib_hour_usd is 'cheap'")):
            cost.write_text(text)
            refused(2, f'{cost}, {needle}', '--cost-file', cost)
        refused(3, '/nowhere/cost.toml', '--cost-file', '/nowhere/cost.toml')
        refused(6, 'usage log', '--usage-log', f'{folder}/none/usage')
        refused(2, '--tenants-max', '--tenants-max', 0)


def refused(code, needle, *flags):
    try:
        with Server(*flags):
            raise AssertionError(f'it serves with {flags}')
    except ServerEnded as ended:
        assert ended.code == code and needle in str(ended), (flags, ended)


if __name__ == '__main__':
    main(a_model_is_counted_three_ways_apart, what_cannot_be_counted_is_one_line, records_of_two_tenants_add_up, deaths_cost_no_record_and_show_in_it,
         the_clients_name_their_tenant, a_stop_writes_down_what_is_open,
         a_full_disk_costs_lines_and_nothing_else, prices_and_logs_that_cannot_be_are_refused_before_anything_starts)
