#!/usr/bin/env python3
"""Writes monitoring/grafana/*.json: the Grafana dashboards, from a few lines a panel.

    tools/grafana_dashboards.py [--check]

Most of a dashboard's JSON is the same for every panel, and where a panel lies follows from the panels before it; by hand both go wrong. The JSON is committed,
so nobody needs this to use it. --check compares and writes nothing; dashboards_test does that, so what is committed is always what this makes.
Expressions use the server's own metrics only, never recording rules: a dashboard works with any Prometheus that scrapes the server.
"""

import argparse
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "monitoring/grafana"
COLUMNS = 24  # of Grafana's grid
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
HERE = 'instance=~"$instance"'
EVERY = "$__rate_interval"
DIVERGING = {"mode": "continuous-BlYlRd"}
OFF_ON = [{"type": "value", "options": {"0": {"text": "no", "color": "dark-red"}, "1": {"text": "yes", "color": "dark-green"}}}]
YES_NO = [{"type": "value", "options": {"0": {"text": "no"}, "1": {"text": "yes"}}}]
STATE = [{"type": "value", "options": {"0": {"text": " ", "color": "transparent"}, "1": {"text": "yes", "color": "dark-blue"}}}]


def panel(kind, title, width, queries, about, unit="short", height=8, **more):
    """One panel. `queries` are (expression, legend) pairs; `more` goes to the parts of the panel by the names below."""
    table = kind in ("table", "matrix")
    targets = [{
        "datasource": SOURCE, "refId": chr(ord("A") + number), "expr": expression, "legendFormat": legend, "format": "table" if table else "time_series",
        "instant": table or kind == "stat", "range": not (table or kind == "stat"),
    } for number, (expression, legend) in enumerate(queries)]
    defaults = {"unit": unit, "custom": more.get("custom", {}), "mappings": more.get("mappings", []), "color": more.get("color", {"mode": "palette-classic"})}
    for name in ("min", "max", "decimals", "noValue"):
        if name in more:
            defaults[name] = more[name]
    if "limits" in more:
        steps = [{"color": colour, "value": value} for colour, value in more["limits"]]
        defaults |= {"thresholds": {"mode": "absolute", "steps": steps}, "color": {"mode": "thresholds"}}
    made = {"type": "table" if table else kind, "title": title, "description": about, "datasource": SOURCE, "targets": targets,
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": more.get("options", {}), "size": (width, height)}
    if "transformations" in more:
        made["transformations"] = more["transformations"]
    return made


def lines(title, width, queries, about, unit="short", stacked=False, **more):
    custom = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 25 if stacked else 0, "showPoints": "never",
              "stacking": {"mode": "normal" if stacked else "none", "group": "A"}}
    options = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi", "sort": "desc"}}
    return panel("timeseries", title, width, queries, about, unit, custom=custom, options=options, **{"min": 0, **more})


def events(title, width, queries, about, **more):
    """Counts of what happened in each interval, as bars."""
    made = lines(title, width, queries, about, stacked=True, decimals=0, **more)
    made["fieldConfig"]["defaults"]["custom"] |= {"drawStyle": "bars", "fillOpacity": 80}
    return made


def number(title, width, expression, about, unit="short", limits=(("text", None),), **more):
    options = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "value", "graphMode": "none", "textMode": "auto"}
    return panel("stat", title, width, [(expression, "{{instance}}")], about, unit, height=4, limits=limits, options={**options, **more.pop("options", {})}, **more)


def timeline(title, width, queries, about, mappings, height=8):
    options = {"mergeValues": True, "showValue": "never", "rowHeight": 0.8, "legend": {"showLegend": False}}
    return panel("state-timeline", title, width, queries, about, mappings=mappings, color={"mode": "thresholds"}, height=height, options=options)


def heat(title, width, expression, label, about, height=10, **more):
    """A heat map over time: one row for each value of a label, which is a number."""
    for digits in ("(.)", "(..)"):
        expression = f'label_replace({expression}, "{label}", "0$1", "{label}", "{digits}")'  # labels are text: 0, 1, 10, 2; but 000, 001, 002, 010
    options = {"calculate": False, "cellGap": 1, "cellValues": {}, "filterValues": {"le": 1e-9}, "exemplars": {"color": "rgba(255,0,255,0.7)"}, "color": {"mode": "scheme", "scheme": "Turbo", "steps": 64, "exponent": 0.5, "scale": "exponential"},
               "yAxis": {"axisPlacement": "left", "reverse": True}, "rowsFrame": {"layout": "auto"}, "tooltip": {"show": True, "mode": "single", "yHistogram": False},
               "legend": {"show": True}, "showValue": "never"}
    return panel("heatmap", title, width, [(expression, f"{{{{{label}}}}}")], about, height=height, options=options, **more)


def matrix(title, width, expression, rows, columns, about, unit="short", height=14, **more):
    """A heat map of now: a table of label `rows` by label `columns`, coloured by value. Labels are text and would sort 0, 1, 10, 2."""
    sort = [{"id": "sortBy", "options": {"fields": {}, "sort": [{"field": label}]}} for label in (columns, rows)]
    numbers = {"id": "convertFieldType", "options": {"conversions": [{"targetField": label, "destinationType": "number"} for label in (rows, columns)]}}
    pivot = {"id": "groupingToMatrix", "options": {"columnField": columns, "rowField": rows, "valueField": "Value", "emptyValue": "null"}}
    made = panel("matrix", title, width, [(expression, "")], about, unit, height=height, color=DIVERGING, transformations=[numbers, *sort, pivot],
                 custom={"align": "center", "minWidth": 38, "cellOptions": {"type": "color-background", "mode": "basic"}},
                 options={"showHeader": True, "cellHeight": "sm", "footer": {"show": False}}, **more)
    corner = {"matcher": {"id": "byName", "options": f"{rows}\\{columns}"},
              "properties": [{"id": "custom.cellOptions", "value": {"type": "auto"}}, {"id": "unit", "value": "none"}, {"id": "color", "value": {"mode": "fixed"}}]}
    made["fieldConfig"]["overrides"].append(corner)
    return made


def quantiles(metric, shares, window=EVERY):
    return [(f"histogram_quantile({share}, sum by (le) (rate({metric}_bucket{{{HERE}}}[{window}])))", f"p{100 * share:g}") for share in shares]


def rate(metric, by="", more=""):
    inner = f"rate({metric}{{{HERE}{more}}}[{EVERY}])"
    return f"sum by ({by}) ({inner})" if by else f"sum({inner})"


def happened(metric, by, window=EVERY, more=""):
    return f"sum by ({by}) (increase({metric}{{{HERE}{more}}}[{window}]))"


def now(metric):
    return f"{metric}{{{HERE}}}"


OVERVIEW = [
    "Now",
    number("Ready", 4, f'max by (instance) (althing_state{{{HERE}, state="ready"}})', "1 while the server is ready. The failures dashboard shows its states over time.",
           limits=(("dark-red", None), ("dark-green", 1)), mappings=OFF_ON),
    number("Tokens a second", 4, rate("althing_generation_tokens_total"), "Generated tokens."),
    number("Running", 4, f"sum({now('althing_requests_running')})", "Requests that hold a row of the batch."),
    number("Waiting", 4, f"sum({now('althing_requests_waiting')})", "Accepted requests without a row.", limits=(("text", None), ("orange", 16))),
    number("KV pages in use", 4, f"sum({now('althing_kv_blocks_used')}) / sum({now('althing_kv_blocks')})", "Share of the KV pool.", "percentunit",
           limits=(("text", None), ("orange", 0.75), ("dark-red", 0.9))),
    number("Clients", 4, f"sum({now('althing_sessions')})", "Connected clients."),
    "Latency",
    lines("Time to the first token", 8, quantiles("althing_time_to_first_token_seconds", (0.5, 0.95, 0.99)), "From the submit frame to the first token.", "s"),
    lines("Between two tokens", 8, quantiles("althing_inter_token_seconds", (0.5, 0.95, 0.99)), "Of one stream.", "s"),
    lines("Whole requests, and their wait", 8, quantiles("althing_request_seconds", (0.5, 0.95)) + [
        (quantiles("althing_queue_seconds", (0.95,))[0][0], "p95 until the first step")], "From accepted to the end; and until the first step that held the request.", "s"),
    "Throughput",
    lines("Tokens a second", 12, [(rate("althing_generation_tokens_total"), "generated"), (rate("althing_prompt_tokens_total"), "prompt, accepted"),
                                  (rate("althing_step_tokens_total"), "computed in steps")],
          "Computed is prompt and generated tokens, and those that are computed again after a loss or a preemption."),
    lines("Requests", 12, [(f"sum({now('althing_requests_running')})", "running"), (f"sum({now('althing_requests_waiting')})", "waiting")], "The batch and its queue.", stacked=True),
    lines("Time of a step", 8, quantiles("althing_step_seconds", (0.5, 0.99)), "From plan to result.", "s"),
    lines("Tokens of a step", 8, [(f"{rate('althing_step_tokens_total')} / {rate('althing_step_seconds_count')}", "tokens")], "Mean."),
    lines("Time of the scheduler", 8, quantiles("althing_scheduler_event_seconds", (0.5, 0.99)), "What the core itself takes for one event.", "s"),
    "Requests",
    lines("Accepted", 6, [(rate("althing_requests_accepted_total"), "accepted")], "A second.", "reqps"),
    lines("Ended", 6, [(rate("althing_requests_total", "outcome"), "{{outcome}}")], "Accepted requests by their end, a second.", "reqps", stacked=True),
    lines("Errors and cancellations", 6, [(rate("althing_request_errors_total", "class") + " > 0", "{{class}}")], "Accepted requests that ended in error or were cancelled, by class.", "reqps", stacked=True),
    lines("Refused", 6, [(rate("althing_requests_rejected_total", "reason") + " > 0", "request: {{reason}}"), (rate("althing_frames_refused_total", "reason") + " > 0", "frame: {{reason}}"),
                         (rate("althing_door_closed_total") + " > 0", "door closed: no descriptors")],
          "Requests refused at admission, client frames that were refused, and times that nobody could connect.", "reqps", stacked=True),
    lines("Malformed output that was mended", 24, [(rate("althing_harmony_repairs_total", "kind") + " > 0", "{{kind}}")], "By kind, a second; docs/harmony.md says what each is.", stacked=True),
    lines("Keys of clients", 12, [(rate("althing_zap_requests_total", "result"), "{{result}}")], "Handshakes where clients need keys: let in, turned away.", "reqps", stacked=True),
    lines("List of keys", 12, [(f"sum by (outcome) (increase(althing_allow_list_reads_total{{{HERE}}}[{EVERY}]))", "{{outcome}}")], "Times that it had changed and was read again; refused: the one before stays."),
    "Tenants: requests that have ended",
    lines("Price", 8, [(f"sum by (tenant) (rate(althing_tenant_price_usd_total{{{HERE}}}[{EVERY}])) * 3600", "{{tenant}}")], "US dollars an hour, by the prices of --cost-file.", "currencyUSD", stacked=True),
    lines("Ranks' time", 8, [(rate("althing_tenant_device_seconds_total", "tenant"), "{{tenant}}"), (rate("althing_device_seconds_total"), "all steps"), (rate("althing_device_unattributed_seconds_total"), "for nobody")],
          "Ranks at work: seconds of steps times ranks, a second. Tenants' shares come when requests end."),
    lines("KV held", 8, [(rate("althing_tenant_kv_byte_seconds_total", "tenant"), "{{tenant}}")], "Byte-seconds a second: bytes on all ranks.", "bytes", stacked=True),
    lines("Requests", 6, [(rate("althing_tenant_requests_total", "tenant"), "{{tenant}}")], "A second.", "reqps", stacked=True),
    lines("Tokens", 6, [(rate("althing_tenant_prompt_tokens_total", "tenant"), "{{tenant}} prompt"), (rate("althing_tenant_completion_tokens_total", "tenant"), "{{tenant}} completion")], "A second.", stacked=True),
    lines("Tokens computed", 6, [(rate("althing_tenant_computed_tokens_total", "tenant"), "{{tenant}} tokens"), (rate("althing_tenant_expert_tokens_total", "tenant"), "{{tenant}} expert tokens")],
          "A second, those that were computed again too; an expert token is a token at one expert of one layer."),
    events("Lines of the usage log", 6, [(happened("althing_usage_records_total", "outcome"), "{{outcome}}")], "Lost ones did not fit on the disk."),
    "HTTP gateway: scrape its own address too",
    lines("Answers", 8, [(rate("althing_gateway_responses_total", "route, status"), "{{route}} {{status}}")], "By route and class of status, a second.", "reqps", stacked=True),
    lines("Time to the first token over HTTP", 8, quantiles("althing_gateway_first_event_seconds", (0.5, 0.95)), "From a request's last byte to its first token.", "s"),
    lines("Tokens over HTTP", 8, [(rate("althing_gateway_tokens_total", "kind"), "{{kind}}")], "A second; reasoning is part of completion."),
    lines("Open requests", 6, [(f"sum({now('althing_gateway_open_requests')})", "open")], "That the engine works for."),
    lines("Refused over HTTP", 6, [(rate("althing_gateway_rejected_total", "reason"), "request: {{reason}}"), (rate("althing_gateway_refused_connections_total", "reason"), "connection: {{reason}}")],
          "Requests and connections that were not served, a second.", "reqps", stacked=True),
    lines("Broken off", 6, [(rate("althing_gateway_broken_off_total"), "broken off")], "Clients that left before the end of their answer, a second.", "reqps"),
    lines("Bytes sent", 6, [(rate("althing_gateway_sent_bytes_total", "route"), "{{route}}")], "A second, by route.", "Bps", stacked=True),
    "Memory, and what watching costs",
    lines("KV pages", 8, [(f"sum({now('althing_kv_blocks_used')})", "in use"), (f"sum({now('althing_kv_blocks')})", "all")], "Of all pools."),
    events("Preemptions", 8, [(happened("althing_preemptions_total", "instance"), "{{instance}}"), (happened("althing_preemptions_for_share_total", "instance"), "{{instance}} for a tenant's share")], "A running request gave its pages back and waits again."),
    lines("Time to make the pages", 4, [(now("althing_scrape_seconds"), "{{path}}")], "What a scrape costs the server.", "s"),
    lines("Series", 4, [(now("althing_series"), "{{path}}")], "On each page."),
    panel("table", "Build", 12, [(now("althing_build_info"), "")], "What runs.", height=4),
    number("Numbers refused", 12, f"sum({now('althing_reports_refused_total')})", "Numbers given to the metrics that could not be; a bug where it is not 0.",
           limits=(("text", None), ("dark-red", 1))),
]

MEAN_OF_LAYER = f"avg by (layer) (increase(althing_expert_tokens_total{{{HERE}}}[$__range]))"
EXPERTS = [
    "Now",
    number("Largest imbalance of experts", 5, f"max({now('althing_expert_imbalance_ratio')})", "Hottest expert over the mean, worst layer, recent window.", decimals=2),
    number("Largest imbalance of ranks", 5, f"max({now('althing_rank_imbalance_ratio')})", "Busiest rank over the mean, worst layer.", decimals=2,
           limits=(("text", None), ("orange", 1.5))),
    number("Hot experts", 4, f"sum({now('althing_expert_hot')})", "Over twice the mean, all layers."),
    number("Idle experts", 4, f"sum({now('althing_expert_idle')})", "Without a token in the window, all layers."),
    number("Soonest saturation", 6, f"min({now('althing_expert_saturation_minutes')})", "Minutes until the hottest expert of some layer takes --expert-capacity-factor times the mean, at the present slope.",
           "m", limits=(("dark-red", None), ("orange", 1), ("text", 15))),
    "Where tokens go",
    matrix("Layer by rank", 8, f"sum by (layer, rank) (increase(althing_layer_rank_tokens_total{{{HERE}}}[$__range]))", "layer", "rank", "Tokens that the experts of each layer took on each rank, in the time shown."),
    matrix("Layer by expert", 16, f"sum by (layer, expert) (increase(althing_expert_tokens_total{{{HERE}}}[$__range])) / on (layer) group_left () {MEAN_OF_LAYER}",
           "layer", "expert", "Tokens of each expert over its layer's mean, in the time shown. Needs --expert-metrics.", "none", decimals=1, min=0, max=4),
    heat("Experts of layer $layer over time", 12, f'sum by (expert) (rate(althing_expert_tokens_total{{{HERE}, layer="$layer"}}[{EVERY}]))', "expert",
         "Tokens a second by expert. Needs --expert-metrics."),
    heat("Weight of the experts of layer $layer", 12, f'sum by (expert) (rate(althing_expert_gate_weight_total{{{HERE}, layer="$layer"}}[{EVERY}]))', "expert",
         "Sum of the gate weights a second by expert: an expert with many tokens and little weight is chosen often and matters little. Needs --expert-metrics."),
    "How even the load is, by layer",
    heat("Imbalance of experts", 12, f"max by (layer) ({now('althing_expert_imbalance_ratio')})", "layer", "Hottest expert over the mean, one row a layer."),
    heat("Imbalance of ranks", 12, f"max by (layer) ({now('althing_rank_imbalance_ratio')})", "layer", "Busiest rank over the mean: what a step waits for."),
    lines("Spread", 8, [(f"max by (layer) ({now('althing_expert_load_cv')})", "{{layer}}")], "Standard deviation over mean of the experts' loads."),
    lines("Share of the hottest", 8, [(f"max by (k) ({now('althing_expert_top_share_ratio')})", "hottest {{k}}")], "Share of a layer's tokens that its hottest k experts take, worst layer.", "percentunit"),
    lines("Minutes to saturation", 8, [(f"min by (layer) ({now('althing_expert_saturation_minutes')}) < 240", "{{layer}}")], "By slope; layers that do not rise are not shown.", "m"),
    lines("Hot", 8, [(f"max by (layer) ({now('althing_expert_hot')})", "{{layer}}")], "Experts over twice the mean.", stacked=True),
    lines("Idle", 8, [(f"max by (layer) ({now('althing_expert_idle')})", "{{layer}}")], "Experts without a token in the window.", stacked=True),
    lines("Experts that a step meets", 8, [(f"avg by (layer) ({now('althing_expert_active')})", "{{layer}}")], "Distinct experts of a layer in one step, mean over the window."),
    lines("Rows lost to padding", 8, [(f"max({now('althing_expert_padding_ratio')})", "padded to the hottest")],
          "Part of the rows that would be empty if each expert's were padded to its layer's hottest.", "percentunit"),
    lines("Resident experts", 8, [(f"sum by (rank) ({now('althing_expert_replicas')})", "rank {{rank}}")], "Experts that each rank holds in a layer, copies counted.", stacked=True),
    lines("Diverted choices", 8, [(f"sum(rate(althing_expert_{what}_total{{{HERE}}}[{EVERY}]))", what.replace("_", " ")) for what in ("rerouted", "to_replica", "dropped", "omitted")],
          "Choices of an expert that went another way, a second; all 0 without --capacity-policy and --dynamic-k."),
    lines("Weights read", 12, [(f"sum(rate(althing_weight_bytes_total{{{HERE}}}[{EVERY}]))", "all weights"), (f"sum(rate(althing_expert_weight_bytes_total{{{HERE}}}[{EVERY}]))", "experts")],
          "Bytes a second on all ranks together, computed from the experts that steps met; no hardware counter is read.", "Bps"),
    "The router",
    lines("Entropy", 6, [(f"max by (layer) ({now('althing_router_entropy_nats')})", "{{layer}}")], "Of the probabilities over all experts, mean of the window, in nats: 0 is sure, ln(experts) is chance."),
    lines("Variance of logits", 6, [(f"min by (layer) ({now('althing_router_logit_variance')})", "{{layer}}")], "Below 0.1 the router hardly tells experts apart."),
    lines("Margin of the first choice", 6, [(f"min by (layer) ({now('althing_router_top1_margin')})", "{{layer}}")], "First over second choice, mean of the window."),
    lines("Gate weight by place", 6, [(f"avg by (place) ({now('althing_router_gate_weight')})", "place {{place}}")], "Mean weight of the first choice, the second …"),
    "The expert tier",
    number("Switched off by its size", 12, f"max({now('althing_expert_tier_disabled')})", "1 when /metrics/experts would have more series than --expert-series-max.", mappings=YES_NO),
    lines("Tokens by slot, layer $layer", 12, [(f'topk(8, sum by (rank, slot) (rate(althing_expert_slot_tokens_total{{{HERE}, layer="$layer"}}[{EVERY}])))', "rank {{rank}} slot {{slot}}")],
          "The eight busiest places of copies of experts; there only where the series cap allows."),
]

PHASES = "sum by (phase) (rate(althing_recovery_phase_seconds_sum{%s}[$__range])) / sum by (phase) (rate(althing_recovery_phase_seconds_count{%s}[$__range]))" % (HERE, HERE)
FAILURES = [
    "Now",
    number("Members up", 4, f"sum({now('althing_rank_up')})", "Ranks of the present membership."),
    number("Epoch", 4, f"max({now('althing_membership_epoch')})", "Rises with every change of membership."),
    number("Spares", 4, f"sum({now('althing_spares')})", "Loaded processes that can take a lost rank's place at once."),
    number("In quarantine", 4, f"sum({now('althing_quarantined')})", "Ranks left out because they died too often.", limits=(("text", None), ("dark-red", 1))),
    number("Degraded", 4, f"max({now('althing_degraded')})", "Fewer ranks serve than were asked for.", limits=(("text", None), ("dark-red", 1)), mappings=YES_NO),
    number("Core restarts", 4, f"sum({now('althing_core_restarts_total')})", "Since the server started.", limits=(("text", None), ("orange", 1))),
    "States",
    timeline("What the server says of itself", 12, [(now("althing_state"), "{{state}}")], "One state at a time.", STATE),
    timeline("Ranks", 12, [(now("althing_rank_up"), "rank {{rank}}")], "Members of the present epoch.", OFF_ON),
    lines("Silence of a rank", 12, [(f"time() - {now('althing_last_step_timestamp_seconds')}", "rank {{rank}}")],
          "Since its last sign of progress. The clocks of server and Prometheus must agree.", "s"),
    lines("Epoch", 12, [(now("althing_membership_epoch"), "{{instance}}")], "Each step is one change of membership."),
    "What happened",
    events("Ranks lost", 8, [(happened("althing_rank_failures_total", "cause"), "{{cause}}")], "By cause."),
    events("Faults recovered from", 8, [(happened("althing_faults_total", "cause, recovered_by") + " > 0", "{{cause}} by {{recovered_by}}")], "By cause and way."),
    events("Recoveries and core restarts", 8, [(happened("althing_recoveries_total", "instance"), "recoveries"), (happened("althing_core_restarts_total", "instance"), "core restarts")],
           "Times serving resumed, and times the core was started again."),
    "How long it took",
    lines("Recoveries", 8, quantiles("althing_recovery_seconds", (0.5, 0.99), "$__range"), "From the loss of a rank to serving again, over the time shown.", "s"),
    lines("Recoveries of the core", 8, quantiles("althing_core_recovery_seconds", (0.5, 0.99), "$__range"), "From the core's death to the next token of a stream that it left.", "s"),
    lines("Phases of recoveries", 8, [(PHASES, "{{phase}}")], "Mean of each phase over the time shown.", "s", stacked=True),
    "Shared prefixes",
    lines("Prompt tokens", 8, [(rate("althing_prefix_tokens_total", "fate"), "{{fate}}")], "Tokens of prompts a second: there already, or computed.", stacked=True),
    events("Misses", 8, [(happened("althing_prefix_miss_total", "reason") + " > 0", "{{reason}}")], "Requests by why no more of their prompt was there."),
    lines("Cached pages", 8, [(f"sum({now('althing_kv_blocks_cached')})", "cached"), (rate("althing_kv_blocks_evicted_total", "instance"), "evicted a second")], "KV pages that hold beginnings of earlier requests."),
    "Guesses",
    lines("Guessed tokens", 8, [(rate("althing_guessed_tokens_total", "verdict"), "{{verdict}}")], "Tokens a second that were guessed: the model drew the same, or another.", stacked=True),
    "The KV mirror",
    lines("Pages", 8, [(rate("althing_kv_mirror_pages_total", "fate"), "{{fate}}")], "KV pages and their copies a second, by fate.", stacked=True),
    lines("Memory of copies", 8, [(f"sum({now('althing_kv_mirror_bytes')})", "bytes")], "On all ranks.", "bytes"),
    events("Lost KV", 8, [(happened("althing_kv_restored_tokens_total", "instance"), "came back"), (happened("althing_kv_recomputed_tokens_total", "instance"), "computed again")], "Tokens whose lost KV came back from copies, and those that were computed again."),
]


def lay_out(parts):
    """Panels from left to right, in the order given; a text begins a titled row."""
    placed, x, y, tallest = [], 0, 0, 0
    for number_, part in enumerate(parts, 1):
        part = {"type": "row", "title": part, "collapsed": False, "panels": [], "size": (COLUMNS, 1)} if isinstance(part, str) else dict(part)
        width, height = part.pop("size")
        if x + width > COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        placed.append({"id": number_, **part, "gridPos": {"x": x, "y": y, "w": width, "h": height}})
        x, tallest = x + width, max(tallest, height)
    return placed


def variable(name, label, query, **more):
    return {"type": "query", "name": name, "label": label, "datasource": SOURCE, "query": {"query": query, "refId": name}, "definition": query, "refresh": 2, "sort": 3,
            "multi": False, "includeAll": False, **more}


def dashboard(uid, title, about, parts, variables=()):
    everything = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": ["All"], "value": ["$__all"]}}
    listed = [{"type": "datasource", "name": "datasource", "label": "Prometheus", "query": "prometheus", "refresh": 1},
              variable("instance", "Server", "label_values(althing_build_info, instance)", **everything), *variables]
    link = {"type": "dashboards", "title": "Althing", "tags": ["althing"], "asDropdown": False, "includeVars": True, "keepTime": True, "targetBlank": False}
    return {"uid": uid, "title": title, "description": about, "tags": ["althing"], "schemaVersion": 38, "version": 1, "editable": True, "graphTooltip": 1,
            "time": {"from": "now-30m", "to": "now"}, "refresh": "10s", "timezone": "browser", "links": [link], "templating": {"list": listed},
            "annotations": {"list": []}, "panels": lay_out(parts)}


LAYER = variable("layer", "Layer", "label_values(althing_expert_imbalance_ratio, layer)", current={"text": "0", "value": "0"})
DASHBOARDS = {
    "overview.json": dashboard("althing-overview", "Althing: overview", "Load, latency and throughput of althing servers.", OVERVIEW),
    "experts.json": dashboard("althing-experts", "Althing: experts", "Where tokens go: layers, experts, ranks, and the router.", EXPERTS, [LAYER]),
    "failures.json": dashboard("althing-failures", "Althing: failures", "States, losses, recoveries, and the KV mirror.", FAILURES),
}


def main():
    parser = argparse.ArgumentParser(prog="tools/grafana_dashboards.py", description="Writes monitoring/grafana/*.json.")
    parser.add_argument("--check", action="store_true", help="only compare; the exit status is 1 when a file differs")
    options = parser.parse_args()
    stale = []
    for name, content in DASHBOARDS.items():
        text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
        if not (FOLDER / name).exists() or (FOLDER / name).read_text(encoding="utf-8") != text:
            stale.append(name)
            if not options.check:
                (FOLDER / name).write_text(text, encoding="utf-8")
    print(("differ: " if options.check else "written: ") + (", ".join(stale) or "none"))
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
