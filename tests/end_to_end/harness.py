"""What the end-to-end tests share: a running server with its processes and numbers, a plain JSON client, and the closing line.

Every wait has a deadline and polls the condition it waits for; nothing sleeps and hopes.
"""
import contextlib
import json
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unittest
import urllib.error
import urllib.request

try:
    import zmq
except ImportError:
    zmq = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / 'examples/models/tiny'
BINARY = pathlib.Path(os.environ.get('ALTHING_BINARY', ROOT / 'build/release/althing'))

# The default suite is about CPU ranks; whoever sets this wants the same of GPUs. Servers and commands inherit it.
os.environ.setdefault('ALTHING_DEVICE', 'cpu')
RANKS = int(os.environ.get('ALTHING_TEST_RANKS', '2'))  # of servers whose test does not say; GPUs may be fewer

# How much slower than a release build the program under test may be: sanitizer builds get more.
PATIENCE = float(os.environ.get('ALTHING_PATIENCE', '1'))


def wait_for(what, condition, seconds=10.0):
    """Polls until condition() is truthy and returns it; fails by name when the time is over."""
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f'not within {seconds} s: {what}')
        time.sleep(0.01)


def state_of(pid):
    """The kernel's letter for what a process does (T: stopped, Z: dead and not reaped); None when there is none."""
    try:
        return pathlib.Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def alive(pid):
    return state_of(pid) not in (None, 'Z')


class ServerEnded(AssertionError):
    """It ended instead of serving: with this exit code, for the reason that the last lines of its log say."""

    def __init__(self, code, log):
        super().__init__(f'the server ended with {code}:\n{log}')
        said = [line for line in log.splitlines() if line.startswith('althing: ')] or log.splitlines()[-1:] or ['it said nothing']
        self.code, self.reason = code, said[-1].removeprefix('althing: ')


class NobodyAnswered(AssertionError):
    """No server is where one was expected."""


class Server:
    """`althing serve` with the tiny model, another, or none but what the flags say; children by role, readiness, metrics."""

    def __init__(self, *flags, ranks=RANKS, model=TINY, binary=BINARY, ready_within=60):
        self.folder = tempfile.TemporaryDirectory(prefix='althing-test-')
        self.ready_file = pathlib.Path(self.folder.name) / 'ready.json'
        self.log_path = pathlib.Path(self.folder.name) / 'log'
        command = [binary, 'serve', *([] if model is None else [model]), '--ranks', ranks, '--bind', 'tcp://127.0.0.1:0', '--metrics', '127.0.0.1:0',
                   '--ready-file', self.ready_file, *flags]
        self.started = time.monotonic()
        self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                        stderr=self.log_path.open('w'), start_new_session=True)
        wait_for('the server is ready', lambda: self.ready_file.exists() or self.process.poll() is not None, ready_within)
        if self.process.poll() is not None:
            raise ServerEnded(self.process.returncode, self.log())
        self.ready_seconds = time.monotonic() - self.started
        addresses = json.loads(self.ready_file.read_text())
        self.endpoint, self.metrics_address, self.http = addresses['endpoint'], addresses['metrics'], addresses['http']

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            lines = [line for line in self.log().splitlines() if ': request' not in line]
            print('--- the server\'s log, without requests:', *lines[-40:], sep='\n')
        children = self.children()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(15 * PATIENCE)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        wait_for('no child outlives the server', lambda: not any(alive(pid) for pid in children.values()), 2)
        self.folder.cleanup()

    def log(self):
        return self.log_path.read_text(errors='replace')

    def children(self):
        """{'core': pid, 'rank0': pid, …} of those that live now."""
        found = {}
        for entry in pathlib.Path('/proc').iterdir():
            if not entry.name.isdigit():
                continue
            try:
                stat = (entry / 'stat').read_text().rsplit(')', 1)[1].split()
                words = (entry / 'cmdline').read_bytes().decode().split('\0')
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(stat[1]) != self.process.pid or stat[0] == 'Z' or '--child' not in words:
                continue
            role = words[words.index('--child') + 1]
            found['rank' + words[words.index('--child-rank') + 1] if role == 'rank' else role] = int(entry.name)
        return found

    def get(self, path):
        try:
            with urllib.request.urlopen(f'http://{self.metrics_address}{path}', timeout=2) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ''

    def ready(self, after_epoch=0):
        """True when /ready says so, under a membership newer than after_epoch."""
        code, body = self.get('/ready')
        return code == 200 and json.loads(body)['epoch'] > after_epoch

    def epoch(self):
        return json.loads(self.get('/ready')[1])['epoch']

    def metric(self, name):
        """The sum of a metric's samples."""
        total, seen = 0.0, False
        for line in self.get('/metrics')[1].splitlines():
            if line.startswith(name) and line[len(name)] in ' {':
                total, seen = total + float(line.rsplit(' ', 1)[1]), True
        assert seen, f'no metric {name}'
        return total

    def usage(self):
        """Open descriptors and private resident KiB of each child."""
        result = {}
        for role, pid in self.children().items():
            status = pathlib.Path(f'/proc/{pid}/status').read_text()
            anonymous = next(int(line.split()[1]) for line in status.splitlines() if line.startswith('RssAnon'))
            result[role] = (len(os.listdir(f'/proc/{pid}/fd')), anonymous)
        return result


class Choice:
    """One completion of a stream, however it was cut into deltas."""

    def __init__(self):
        self.tokens, self.text = [], {}
        self.routing = []  # of a traced request
        self.logprobs = []  # of one that asks for them
        self.story = []  # [recipient or channel, text, ended] of each message: what the client was told

    def hear(self, delta):
        self.tokens += delta['tokens']
        self.routing += delta.get('routing', [])
        self.logprobs += delta.get('logprobs', [])
        for event in delta['events']:
            if event['type'] == 'message_started':
                assert event['index'] == len(self.story), f'message {event["index"]} after {len(self.story)} of them'
                self.story.append([event['recipient'] or event['channel'], '', False])
            elif event['type'] == 'message_ended':
                self.story[event['index']][2] = True
            elif event['type'] == 'text':
                if self.story:  # a stream of ids has text alone in front of a stop string
                    self.story[event['index']][1] += event['text']
                self.text[event['index']] = self.text.get(event['index'], '') + event['text']


class Stream:
    """What one request was told, by choice; `tokens`, `text` and `story` are choice 0's."""

    def __init__(self):
        self.end, self.sequence = None, 0
        self.submit, self.accepted, self.again_at = None, False, None
        self.choices = [Choice()]

    tokens = property(lambda self: self.choices[0].tokens)
    text = property(lambda self: self.choices[0].text)
    story = property(lambda self: self.choices[0].story)

    def hear(self, message):
        if message['type'] == 'accepted':
            self.accepted = True
            return
        if message['sequence']:
            assert message['sequence'] == self.sequence + 1, f'sequence {message["sequence"]} after {self.sequence}'
            self.sequence += 1
        assert self.end is None, 'a message after the end'
        if message['type'] == 'delta':
            while len(self.choices) <= message['choice']:
                self.choices.append(Choice())
            self.choices[message['choice']].hear(message)
        else:
            self.end = message

    def outcome(self):
        """Everything that must be the same whatever happened to the server meanwhile. How it was cut into deltas, and preemptions, need not be."""
        assert self.end and self.end['type'] == 'done', self.end
        ends = [(end['reason'], end['completion_tokens'], end.get('error'), end.get('stop_string')) for end in self.end.get('choices', [])]
        usage = self.end['usage']
        return ([(choice.tokens, choice.story, choice.logprobs) for choice in self.choices], ends, self.end['reason'], self.end.get('stop_string'),
                usage['completion_tokens'], usage['prompt_tokens'])


class Client:
    """A DEALER that speaks the JSON encoding; survives the core's restarts as docs/protocol.md says."""

    def __init__(self, endpoint, hello=True, keys=None, identity=None):
        """keys: the server's public one, then the client's own public and secret."""
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.DEALER)
        self.socket.setsockopt(zmq.LINGER, 0)
        self.socket.setsockopt(zmq.RECONNECT_IVL, 20)
        if keys:
            self.socket.curve_serverkey, self.socket.curve_publickey, self.socket.curve_secretkey = keys
        if identity:
            self.socket.setsockopt(zmq.IDENTITY, identity)
        self.socket.connect(endpoint)
        self.client_id = secrets.token_hex(16)
        self.instance, self.model, self.streams, self.heard, self.greeted = None, None, {}, time.monotonic(), 0.0
        self.returned = None  # when the server last knew this client's new connection
        self.unknown = False  # the server said that it does not know this connection, and has not welcomed it since
        if hello:
            self.hello()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.context.destroy(linger=0)

    def send(self, kind, **members):
        self.socket.send_multipart([b'ALT1j', json.dumps({'type': kind, **members}).encode()])

    def receive(self, seconds=10.0):
        if not self.socket.poll(max(0, int(seconds * 1000))):
            return None
        self.heard = time.monotonic()
        return json.loads(self.socket.recv_multipart()[-1])

    def hello(self):
        self.send('hello', version_min=1, version_max=1, client_id=self.client_id, client_name='test')
        answer = self.receive()
        if answer is None:
            raise NobodyAnswered('nobody answered within 10 s')
        assert answer['type'] == 'welcome', answer
        self.instance, self.model = answer['server_instance'], answer['model']

    def hello_again(self):
        """As hello(), past whatever its streams still bring."""
        self.send('hello', version_min=1, version_max=1, client_id=self.client_id, client_name='test')
        wait_for('welcome', lambda: (self.receive(1) or {}).get('type') == 'welcome')

    def submit(self, request_id, messages=None, **members):
        self.streams[request_id] = Stream()
        if messages is not None:
            members['messages'] = messages
        self.streams[request_id].submit = {'request_id': request_id, 'return_tokens': True, **members}
        self.send('submit', **self.streams[request_id].submit)

    def open(self):
        return [key for key, stream in self.streams.items() if stream.end is None]

    def step(self, seconds=0.1):
        """One message, or a ping when there is none. A connection that the server does not know any more is introduced again, and streams are resumed."""
        message = self.receive(seconds)
        for key in self.open():
            stream = self.streams[key]
            if stream.again_at and time.monotonic() > stream.again_at:
                stream.again_at = None
                if stream.accepted:
                    self.send('resume', request_id=key, last_sequence=stream.sequence)
                else:
                    self.send('submit', **stream.submit)
        if message is None:
            self.send('ping', nonce=1)
        elif message['type'] == 'welcome':
            self.instance = message['server_instance']
            if not self.unknown:
                return  # the answer to a second hello: streams are resumed already, and would come twice
            self.returned, self.unknown = time.monotonic(), False
            for key in self.open():
                stream = self.streams[key]
                if stream.accepted:
                    self.send('resume', request_id=key, last_sequence=stream.sequence)
                else:
                    self.send('submit', **stream.submit)
        elif message['type'] == 'error' and not message['request_id'] and message['error']['code'] == 'unavailable':
            self.unknown = True
            if time.monotonic() - self.greeted > 0.1:
                self.greeted = time.monotonic()
                self.send('hello', version_min=1, version_max=1, client_id=self.client_id, client_name='test')
        elif message.get('request_id') in self.streams:
            stream = self.streams[message['request_id']]
            if message['type'] == 'error' and not message['sequence'] and message['error']['code'] == 'unavailable':
                return  # it was sent before the hello of this connection
            if message['type'] == 'error' and not message['sequence'] and 'resumed just now' in message['error']['message']:
                stream.again_at = time.monotonic() + 0.1  # one that came too soon after another
                return
            stream.hear(message)

    def finish(self, seconds=60.0):
        deadline = time.monotonic() + seconds * PATIENCE
        while self.open():
            assert time.monotonic() < deadline, f'streams without an end: {self.open()}'
            self.step()


class Proxy:
    """The road to a server, as a process of its own (proxy.py): it can freeze, die, and be there again at the same address."""

    def __init__(self, endpoint):
        self.far, self.port, self.process = endpoint.rsplit(':', 1)[1], None, None
        self.open()

    endpoint = property(lambda self: f'tcp://127.0.0.1:{self.port}')

    def open(self):
        own = [] if self.port is None else [str(self.port)]
        self.process = subprocess.Popen([sys.executable, str(ROOT / 'tests/end_to_end/proxy.py'), self.far, *own], stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def freeze(self):
        self.process.send_signal(signal.SIGSTOP)
        wait_for('the proxy is stopped', lambda: state_of(self.process.pid) == 'T', 2)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.returncode is None:
            self.kill()


def conversations(count):
    with (TINY / 'conversations.jsonl').open(encoding='utf-8') as lines:
        return [json.loads(line) for _, line in zip(range(count), lines)]


def ask(client, request_id, case):
    """Asks as the reference did: a completion that it cut short is cut at the same place."""
    whole = case['completion_text'].endswith('|>')
    client.submit(request_id, case['messages'], sampling={} if whole else {'completion_tokens_max': len(case['completion_ids'])})


def main(*cases, missing='', server=True):
    """Runs functions in order and prints the closing line; names on the command line choose some. `missing`: what they need and is not there. server: they need ours."""
    if {'-h', '--help'} & set(sys.argv[1:]):
        print(f'usage: {pathlib.Path(sys.argv[0]).name} [CASE …]', (sys.modules['__main__'].__doc__ or '').strip(), 'Cases, all of them unless some are named:',
              *(f'  {case.__name__}' for case in cases), sep='\n')
        sys.exit(0)
    unknown = set(sys.argv[1:]) - {case.__name__ for case in cases}
    if unknown:
        print(f'there is no case {", ".join(sorted(unknown))}; see --help', file=sys.stderr)
        sys.exit(2)
    passed = failed = skipped = 0
    reason = missing or ('pyzmq is not installed (apt-get install python3-zmq)' if zmq is None else '' if BINARY.exists() or not server else f'{BINARY} is not built')
    for case in cases:
        if sys.argv[1:] and case.__name__ not in sys.argv[1:]:
            continue
        if reason:
            skipped += 1
            print(f'skipped {case.__name__}: {reason}')
            continue
        began = time.monotonic()
        try:
            case()
            passed += 1
            print(f'passed {case.__name__} ({time.monotonic() - began:.1f} s)', flush=True)
        except unittest.SkipTest as reason_of_case:
            skipped += 1
            print(f'skipped {case.__name__}: {reason_of_case}', flush=True)
        except Exception:  # a failing case must not hide the ones after it
            failed += 1
            print(f'FAILED {case.__name__}:\n{traceback.format_exc()}', flush=True)
    print(f'{passed} passed, {failed} failed, {skipped} skipped')
    sys.exit(1 if failed else 0)
