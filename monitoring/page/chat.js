// The chat: one question at a time, the answer's Harmony messages shown as they stream, each in its channel. What the model writes is untrusted: it is
// only ever set as text. The conversation lives in this tab; the server keeps none of it.

const byId = (id) => document.getElementById(id);
const tab = Array.from(crypto.getRandomValues(new Uint8Array(16)), (n) => n.toString(16).padStart(2, '0')).join('');
const titles = {analysis: 'Reasoning (analysis)', commentary: 'Commentary', final: 'Answer'};

let conversation = [];
let running = null;  // AbortController of the answer that streams

function add(kind, title, text) {
  byId('log-empty').hidden = true;
  const article = document.createElement('article');
  article.className = kind;
  const heading = document.createElement('h3');
  heading.textContent = title;
  const body = document.createElement('p');
  body.textContent = text;
  article.append(heading, body);
  keepAtEnd(() => byId('log').append(article));
  return body;
}

// Follows the text unless the reader has scrolled up.
function keepAtEnd(change) {
  const log = byId('log');
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
  change();
  if (follows) log.scrollTop = log.scrollHeight;
}

// What one answer is made of so far.
class Answer {
  constructor() {
    this.messages = [];  // as history wants them
    this.bodies = [];
    this.end = null;
  }

  hear(message) {
    if (message.type === 'delta') message.events.forEach((event) => this.on(event));
    if (message.type === 'done' || message.type === 'error') this.end = message;
  }

  on(event) {
    if (event.type === 'message_started') {
      const message = {role: event.role, content: ''};
      for (const name of ['channel', 'recipient', 'content_type']) if (event[name]) message[name] = event[name];
      this.messages[event.index] = message;
      const call = message.recipient ? ` call to ${message.recipient}` : '';
      const known = Object.hasOwn(titles, event.channel) ? event.channel : 'commentary';
      const title = call ? `Tool${call}` : (Object.hasOwn(titles, event.channel) ? titles[event.channel] : `Channel ${event.channel || 'without a name'}`);
      this.bodies[event.index] = add(known + (call ? ' call' : ''), title, '');
    } else if (event.type === 'text' && this.messages[event.index]) {
      this.messages[event.index].content += event.text;
      keepAtEnd(() => { this.bodies[event.index].append(event.text); });
    }
  }
}

// Calls `hear` with each event of a text/event-stream body.
async function readEvents(response, hear) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split('\n');
    rest = lines.pop();
    for (const line of lines) if (line.startsWith('data: ')) hear(JSON.parse(line.slice(6)));
  }
}

// The server's sentence about a refused question.
async function refusal(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return text.trim() || `the server answered ${response.status}`;
  }
}

async function ask(question) {
  const answer = new Answer();
  const began = performance.now();
  conversation.push({role: 'user', content: question});
  add('user', 'You', question);
  running = new AbortController();
  busy(true);
  let stopped = false;
  try {
    const response = await fetch('/chat', {
      method: 'POST', headers: {'Content-Type': 'application/json'}, signal: running.signal,
      body: JSON.stringify({tab, messages: conversation, reasoning_effort: byId('effort').value}),
    });
    if (response.ok) {
      await readEvents(response, (message) => answer.hear(message));
    } else {
      answer.end = {type: 'error', error: {message: await refusal(response)}};
    }
  } catch (error) {
    stopped = error.name === 'AbortError';
    answer.end ??= {type: 'error', error: {message: 'the connection to the server was lost'}};
  }
  running = null;
  busy(false);
  answer.end ??= {type: 'error', error: {message: 'the stream ended before the answer did'}};
  conversation.push(...answer.messages.filter((message) => message && message.content));
  const seconds = (performance.now() - began) / 1000;
  if (stopped) {
    byId('chat-note').textContent = 'Stopped.';
  } else if (answer.end.type === 'error') {
    if (answer.messages.length === 0) conversation.pop();
    add('failed', 'No answer', answer.end.error.message);
  } else {
    const {usage, reason} = answer.end;
    const cut = reason === 'length' ? ', cut at the limit' : '';
    const changed = answer.end.layout_changed ? ', while the ranks changed' : '';
    byId('chat-note').textContent =
        `${usage.completion_tokens} tokens after a prompt of ${usage.prompt_tokens} in ${seconds.toFixed(1)} s${cut}${changed}`;
  }
}

function busy(is) {
  byId('send').disabled = is;
  byId('stop').hidden = !is;
  byId('forget').disabled = is;
  byId('log').setAttribute('aria-busy', String(is));
  if (is) byId('chat-note').textContent = 'The model is answering.';
}

export function startChat() {
  byId('ask').addEventListener('submit', (event) => {
    event.preventDefault();
    const question = byId('question').value.trim();
    if (!question || running) return;
    byId('question').value = '';
    ask(question);
  });
  byId('question').addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    byId('ask').requestSubmit();
  });
  byId('stop').addEventListener('click', () => running?.abort());
  byId('forget').addEventListener('click', () => {
    conversation = [];
    byId('log').replaceChildren(byId('log-empty'));
    byId('log-empty').hidden = false;
    byId('chat-note').textContent = '';
    byId('question').focus();
  });
}
