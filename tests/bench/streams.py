"""Streams whose tokens are timed as they reach a client: what the serving benchmarks share."""
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / 'end_to_end'))
from harness import BINARY, PATIENCE, Client, NobodyAnswered, Server, ServerEnded, Stream, conversations, zmq  # noqa: E402

__all__ = ['BINARY', 'Client', 'Server', 'Timing', 'conversations', 'fail', 'run_benchmark', 'run_streams']

MISSING, UNSUPPORTED, INTERRUPTED = 3, 5, 130  # exit codes of the program itself, as README.md lists them


class TimedStream(Stream):
    def __init__(self):
        super().__init__()
        self.arrivals = []  # (seconds on the monotonic clock, tokens so far)

    def hear(self, message):
        super().hear(message)
        if message['type'] == 'delta' and message['tokens']:
            self.arrivals.append((time.monotonic(), len(self.tokens)))


class Timing:
    """What one round of streams took. `began` is when the first was submitted; times are seconds after it."""

    def __init__(self, began, streams):
        self.tokens = sum(len(stream.tokens) for stream in streams)
        self.seconds = max(stream.arrivals[-1][0] for stream in streams) - began
        self.first_token_p50 = statistics.median(stream.arrivals[0][0] - began for stream in streams)
        # Nothing but decode: from when the last stream has begun until the first one ends.
        self.decode_begin = max(stream.arrivals[0][0] for stream in streams)
        self.decode_end = min(stream.arrivals[-1][0] for stream in streams)
        self.decode_tokens = sum(self.count(stream, self.decode_end) - self.count(stream, self.decode_begin) for stream in streams)

    @staticmethod
    def count(stream, until):
        return max((tokens for when, tokens in stream.arrivals if when <= until), default=0)

    @property
    def throughput(self):
        """Tokens a second of everything, prompts and queueing included."""
        return self.tokens / self.seconds

    @property
    def decode(self):
        """Tokens a second of all streams together while all decode; None when they never do."""
        span = self.decode_end - self.decode_begin
        return self.decode_tokens / span if span > 0 else None


def run_streams(client, requests, seconds=600.0):
    """Submits all requests (keyword members of `submit`) at once and waits for their ends. Fails when one ends with an error."""
    began = time.monotonic()
    client.streams.clear()
    for number, members in enumerate(requests):
        client.submit(f'{began}-{number}', **members)
        client.streams[f'{began}-{number}'] = TimedStream()
    deadline = began + seconds * PATIENCE
    while client.open():
        client.step()
        assert time.monotonic() < deadline, f'streams without an end: {len(client.open())}'
    streams = list(client.streams.values())
    for stream in streams:
        assert stream.end['type'] == 'done', stream.end
    return Timing(began, streams)


def fail(code, why):
    print(f'{pathlib.Path(sys.argv[0]).name}: {why}', file=sys.stderr)
    sys.exit(code)


def run_benchmark(main):
    """Runs main. What is missing to measure at all (a server, a GPU, a program, a library) is one line and its exit code, not a traceback; what goes wrong
    while it measures is a bug, and keeps its traceback."""
    if zmq is None and not {'-h', '--help'} & set(sys.argv[1:]):
        fail(UNSUPPORTED, 'pyzmq is not installed; apt-get install python3-zmq')
    try:
        main()
    except NobodyAnswered as error:
        fail(MISSING, f'{error}; start a server first (build/release/althing serve FOLDER), or name its address with --endpoint')
    except ServerEnded as error:
        fail(error.code if error.code > 0 else 1, f'the server ended with {error.code}: {error.reason}')
    except FileNotFoundError as error:
        fail(MISSING, f'there is no {error.filename}; build it: cmake --preset release && ninja -C build/release')
    except PermissionError as error:
        fail(MISSING, f'{error.filename} is not a program that can be run')
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
