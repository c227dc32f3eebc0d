#!/usr/bin/env python3
"""Planted experts are found: one that gets every token of its layer is named hot, one that gets none is listed as dead, within 15 seconds of the first token, by what the live page
and Prometheus read. The same server with the model as it is names neither.
"""
import json
import tempfile
import time

from experts_test import LAYERS, TOP_K, series
from forced_routing import forced_model
from harness import TINY, Client, Server, conversations, main, wait_for

CASES = conversations(8)
HOT, DEAD = (2, 3), (4, 5)  # (layer, expert)
SECONDS = 15.0


class Load:
    """Eight streams until told otherwise."""

    def __init__(self, client):
        self.client, self.count = client, 0

    def step(self):
        while len(self.client.open()) < 8:
            self.count += 1
            self.client.submit(f's{self.count}', CASES[self.count % len(CASES)]['messages'], sampling={'completion_tokens_max': 64, 'ignore_stop': True})
        self.client.step(0.05)


def named(server):
    """({hot (layer, expert): share}, {dead (layer, expert)}) of /experts.json, once it has seen enough to say; else None."""
    status, text = server.get('/experts.json')
    known = json.loads(text) if status == 200 else {}
    if not known.get('window_whole'):
        return None
    return {(layer, expert): share for layer, expert, share in known['hot']}, {tuple(pair) for pair in known['dead']}


def found(model):
    """What named() says when it first can, and the values of /metrics beside it, by layer."""
    with Server('--expert-metrics', ranks=2, model=model) as server, Client(server.endpoint) as client:
        load = Load(client)
        began = time.monotonic()
        hot, dead = wait_for('the experts page says something', lambda: load.step() or named(server), SECONDS)
        took = time.monotonic() - began
        text = server.get('/metrics')[1]
        metrics = {name: {layer: float(value) for (layer,), value in series(text, f'althing_expert_{name}').items()} for name in ('hot', 'idle', 'imbalance_ratio')}
        tokens = series(server.get('/metrics/experts')[1], 'althing_expert_tokens_total')
        client.finish()
    return hot, dead, metrics, tokens, took


def a_hot_and_a_dead_expert_are_named_in_time():
    with tempfile.TemporaryDirectory(prefix='althing-planted-') as folder:
        hot, dead, metrics, tokens, took = found(forced_model(folder, always=[HOT], never=[DEAD]))
    assert took < SECONDS, took
    # It has a place in every token's choice: one of top_k.
    assert abs(hot.get(HOT, 0) - 1 / TOP_K) < 0.01, hot
    assert DEAD in dead, dead
    assert metrics['hot'][HOT[0]] >= 1 and metrics['idle'][DEAD[0]] >= 1, metrics
    assert metrics['imbalance_ratio'][HOT[0]] > 2, metrics
    assert int(tokens[DEAD]) == 0 and int(tokens[HOT]) > 0, tokens
    print(f'  named after {took:.1f} s')


def without_them_neither_is_named():
    hot, dead, metrics, tokens, _ = found(TINY)
    assert HOT not in hot and DEAD not in dead, (hot, dead)
    assert len(metrics['hot']) == LAYERS and int(tokens[DEAD]) > 0


if __name__ == '__main__':
    main(a_hot_and_a_dead_expert_are_named_in_time, without_them_neither_is_named)
