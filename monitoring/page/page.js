// The live page: once a second it asks for /live.json, and with it for the experts and for events that are new, and writes what it heard into its
// places. It does not ask while nobody looks. When the server does not answer it says so, keeps what it last knew, and goes on by itself.
// Everything from the server is set as text, never as markup.

import {startChat} from './chat.js';
import {HeatMap} from './heat_map.js';

const interval = 1000, patience = 3000;
const byId = (id) => document.getElementById(id);
const write = (id, text) => { if (byId(id).textContent !== String(text)) byId(id).textContent = text; };
const levels = {ready: 'good', serving: 'good', starting: 'warn', joining: 'warn', silent: 'warn', recovering: 'warn', draining: 'warn'};
const levelOf = (state) => levels[state] ?? 'bad';
const phaseNames = ['detect', 'agree', 'weights', 'join', 'recompute', 'resume'];

const element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};
const amount = (n) => (n >= 100 ? Math.round(n).toLocaleString('en') : n >= 10 ? n.toFixed(1) : n.toFixed(n > 0 ? 2 : 0));
const span = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : ms < 120e3 ? `${(ms / 1000).toFixed(1)} s` : `${Math.round(ms / 60e3)} min`);
const plural = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;

async function get(path) {
  const response = await fetch(path, {cache: 'no-store', signal: AbortSignal.timeout(patience)});
  return {status: response.status, json: response.status === 404 ? null : await response.json()};
}

// --- what one reading says ---

function showState(state, live) {
  write('state', state);
  byId('state').dataset.level = levelOf(state);
  document.title = state === 'ready' ? 'Althing' : `Althing: ${state}`;
  if (!live) return;
  write('model', live.model);
  write('facts', `epoch ${live.epoch} · core up ${span(live.uptime_seconds * 1000)} · ${live.tokens_out.toLocaleString('en')} tokens, ` +
        `${plural(live.requests_ended, 'request')} ended · ${live.version}`);
}

const history = {out: [], in: []};

function showNumbers(live) {
  write('rate-out', amount(live.tokens_out_per_second));
  write('rate-in', amount(live.tokens_in_per_second));
  write('running', live.running);
  write('waiting', live.waiting);
  write('first-token', latencyText(live.first_token_ms.p50, live.first_token_ms.bound));
  for (const [name, value] of [['out', live.tokens_out_per_second], ['in', live.tokens_in_per_second]]) {
    history[name] = [...history[name], value].slice(-61);
    const most = Math.max(1, ...history[name]);
    const from = 61 - history[name].length;
    const points = history[name].map((v, i) => `${2 * (from + i)},${(27 - 25 * v / most).toFixed(1)}`);
    byId(`spark-${name}`).firstElementChild.setAttribute('points', points.join(' '));
  }
}

function latencyText(ms, bound) {
  if (ms === null) return '–';
  const text = ms >= 100 ? Math.round(ms).toLocaleString('en') : ms >= 10 ? ms.toFixed(0) : ms.toFixed(1);
  return ms >= bound ? `≥ ${text}` : text;
}

function showLatency(live) {
  for (const [id, figures] of [['latency-first', live.first_token_ms], ['latency-inter', live.inter_token_ms]]) {
    const cells = byId(id).querySelectorAll('td');
    [figures.p50, figures.p95, figures.p99].forEach((ms, i) => { cells[i].textContent = latencyText(ms, figures.bound); });
    cells[3].textContent = figures.count.toLocaleString('en');
  }
}

function rankCard() {
  const card = element('li');
  const title = element('h3');
  title.append(element('span'), element('span', 'dot'));
  card.append(title);
  for (const name of ['Epoch', 'Experts', 'KV pages', 'Progress']) {
    const row = element('p');
    row.append(element('span', '', name), element('span'));
    card.append(row);
  }
  card.append(element('meter'));
  return card;
}

function fillRank(card, rank, live) {
  card.dataset.level = levelOf(rank.state);
  const [name, state] = card.querySelectorAll('h3 span');
  name.textContent = `Rank ${rank.rank}${live.dp > 1 ? ` · group ${rank.dp_group}` : ''}`;
  state.textContent = rank.state;
  state.dataset.level = levelOf(rank.state);
  const values = card.querySelectorAll('p span:last-child');
  values[0].textContent = rank.epoch || '–';
  values[1].textContent = rank.experts > 0 ? `${rank.experts}: ${rank.expert_ids}` : '–';
  values[2].textContent = `${rank.kv_pages_used} / ${rank.kv_pages}`;
  values[3].textContent = rank.progress_age_ms === null ? '–' : `${span(rank.progress_age_ms)} ago`;
  const meter = card.querySelector('meter');
  meter.max = Math.max(1, rank.kv_pages);
  meter.value = rank.kv_pages_used;
  meter.setAttribute('aria-label', `KV pages of rank ${rank.rank}`);
}

function showRanks(live) {
  const list = byId('ranks');
  while (list.children.length < live.ranks.length) list.append(rankCard());
  while (list.children.length > live.ranks.length) list.lastElementChild.remove();
  live.ranks.forEach((rank, i) => fillRank(list.children[i], rank, live));
  write('grid', `${live.ranks.length} of ${live.ranks_wanted} · DP ${live.dp} · TP ${live.tp} · EP ${live.ep}`);
  const notes = [plural(live.spares, 'spare'), `${live.quarantined} quarantined`];
  if (live.degraded) notes.push('fewer ranks serve than were asked for');
  write('members', notes.join(' · '));
}

// --- experts ---

const heat = new HeatMap(byId('heat'), byId('imbalance'), byId('scale'), byId('heat-cell'));
let experts = null;

const named = (list, write) => {
  const shown = list.slice(0, 8).map(write);
  return list.length === 0 ? 'none' : shown.join(', ') + (list.length > shown.length ? ` and ${list.length - shown.length} more` : '');
};

function showExperts() {
  byId('experts-body').hidden = !experts;
  byId('experts-none').hidden = Boolean(experts);
  if (!experts) return write('experts-none', 'This server does not count its experts.');
  write('experts-size', `${plural(experts.layers, 'layer')} × ${experts.experts}, ${experts.top_k} a token`);
  const which = document.querySelector('input[name=span]:checked').value;
  heat.show(experts[which], experts.imbalance);
  write('hot', named(experts.hot, ([layer, expert, share]) => `L${layer}·E${expert} (${(100 * share).toFixed(0)} %)`));
  write('dead', named(experts.dead, ([layer, expert]) => `L${layer}·E${expert}`));
  const order = experts.imbalance.map((ratio, layer) => [layer, ratio]).sort((a, b) => b[1] - a[1]).slice(0, 3);
  write('uneven', order[0]?.[1] > 0 ? order.map(([layer, ratio]) => `L${layer} ${ratio.toFixed(2)}`).join(', ') : 'no tokens yet');
  const sum = experts.window.flat().reduce((a, b) => a + b, 0);
  byId('heat').setAttribute('aria-label', `Tokens by layer and expert: ${experts.layers} layers, ${experts.experts} experts, ` +
                            `${sum.toLocaleString('en')} in the recent window, ${experts.hot.length} hot, ${experts.dead.length} dead`);
}

// --- events ---

let seen = 0, instance = null;
const kinds = {
  rank_died: (e) => `Rank ${e.rank} died`, spare_died: () => 'A spare died', core_died: () => 'The core died', epoch_stalled: () => 'The membership stalled',
  recovered: (e) => `Recovered${e.rank === undefined ? '' : ` from rank ${e.rank}'s loss`} in ${span(e.total_ms ?? 0)}`,
  core_recovered: (e) => `The core is back after ${span(e.total_ms ?? 0)}`, quarantined: () => 'A rank is quarantined',
  released: () => 'A rank may try again', degraded: () => 'Fewer ranks serve', whole_again: () => 'All ranks serve again',
};
const good = ['recovered', 'core_recovered', 'released', 'whole_again'];

function eventItem(event) {
  const item = element('li');
  const time = element('time', '', new Date(event.time_ms).toLocaleTimeString('en-GB'));
  time.dateTime = new Date(event.time_ms).toISOString();
  const box = element('div');
  const title = Object.hasOwn(kinds, event.kind) ? kinds[event.kind](event) : event.kind;
  const what = element('p', 'what', title);
  what.dataset.level = good.includes(event.kind) ? 'good' : event.kind === 'degraded' || event.kind === 'quarantined' ? 'warn' : 'bad';
  const details = [event.cause && `cause: ${event.cause}`, event.recovered_by && `by ${event.recovered_by}`, event.how,
                   event.streams !== undefined && plural(event.streams, 'stream'),
                   `epoch ${event.epoch}${event.next_epoch ? ` → ${event.next_epoch}` : ''}`].filter(Boolean);
  box.append(what, element('p', 'detail', details.join(' · ')));
  if (event.phases_ms) box.append(phaseBar(event.phases_ms));
  item.append(time, box);
  return item;
}

function phaseBar(phases) {
  const bar = element('div', 'phases');
  const told = phaseNames.map((name) => `${name} ${span(phases[name])}`).join(', ');
  bar.setAttribute('role', 'img');
  bar.setAttribute('aria-label', told);
  bar.title = told;
  phaseNames.forEach((name, i) => {
    const part = element('i', `p${i}`);
    part.style.flexGrow = phases[name];
    if (phases[name] > 0) bar.append(part);
  });
  return bar;
}

function showEvents(events) {
  if (events.length === 0) return;
  const list = byId('events');
  for (const event of events) list.prepend(eventItem(event));
  while (list.children.length > 200) list.lastElementChild.remove();
  byId('events-none').hidden = true;
  byId('phases-key').hidden = !list.querySelector('.phases');
}

// --- the round ---

async function round() {
  const {status, json: live} = await get('/live.json');
  byId('alarm').hidden = true;
  if (status !== 200) return showState(live?.state ?? `answers ${status}`, null);
  if (live.instance !== instance || live.newest_event < seen) {
    // Another server: its events begin again.
    instance = live.instance;
    seen = 0;
    byId('events').replaceChildren();
    byId('events-none').hidden = false;
  }
  showState(live.state, live);
  showNumbers(live);
  showLatency(live);
  showRanks(live);
  const [counted, happened] = await Promise.all([get('/experts.json'), live.newest_event > seen ? get(`/events.json?after=${seen}`) : null]);
  experts = counted.status === 200 ? counted.json : null;
  showExperts();
  if (happened?.status === 200) {
    seen = happened.json.newest;
    showEvents(happened.json.events);
  }
}

let timer = null, asking = false, lastHeard = null;

async function poll() {
  if (asking) return;
  asking = true;
  clearTimeout(timer);
  timer = null;
  const began = performance.now();
  try {
    await round();
    lastHeard = Date.now();
  } catch {
    showState('no answer', null);
    const when = lastHeard === null ? '' : ` Figures below are from ${new Date(lastHeard).toLocaleTimeString('en-GB')}.`;
    write('alarm', `The server does not answer.${when} Asking again every second.`);
    byId('alarm').hidden = false;
  }
  asking = false;
  if (!document.hidden) timer = setTimeout(poll, Math.max(100, interval - (performance.now() - began)));
}

document.addEventListener('visibilitychange', () => { if (!document.hidden && timer === null) poll(); });
document.querySelectorAll('input[name=span]').forEach((input) => input.addEventListener('change', showExperts));
phaseNames.forEach((name, i) => {
  const item = element('span');
  item.append(element('i', `p${i}`), name);
  byId('phases-key').append(item);
});
startChat();
poll();
