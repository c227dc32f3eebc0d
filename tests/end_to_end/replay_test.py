#!/usr/bin/env python3
"""A server's journal, lived once more by `althing replay`: the same decisions on every line, through a rank's death; and what it says when something was touched, cut, redacted or is not
there."""
import pathlib
import re
import subprocess
import tempfile

from harness import BINARY, PATIENCE, Client, Server, conversations, main, wait_for

CASES = conversations(6)


def replay(*words, code=0):
    done = subprocess.run([str(word) for word in (BINARY, 'replay', *words)], capture_output=True, text=True, timeout=60 * PATIENCE, check=False)
    assert done.returncode == code, (words, done)
    return done.stdout + done.stderr


class Journals:
    """What one server has written of a few streams at once, one of them cancelled, while a rank died; and copies of it with something wrong."""

    path = None

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory(prefix='althing-replay-')
        self.path = pathlib.Path(self.folder.name) / 'journal'
        with Server('--journal', self.path, '--allow-faults', '--rows', 3, ranks=2) as server, Client(server.endpoint) as client:
            subprocess.run([BINARY, 'inject', 'kill', '--rank', '1', '--after', '15', '--ready-file', server.ready_file], check=True, capture_output=True, timeout=30)
            for number, case in enumerate(CASES):
                client.submit(f'r{number}', case['messages'], sampling={'completion_tokens_max': 24, 'ignore_stop': True, 'seed': number, 'temperature': 1.0})
            client.send('cancel', request_id='r3')
            client.finish()
            wait_for('the recovery is told', lambda: 'fault rank=1' in server.log())
        self.lines = self.path.read_text().splitlines()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.folder.cleanup()

    def find(self, word):
        return next(i for i, line in enumerate(self.lines) if line.startswith(word + ' '))

    def copy(self, lines, end='\n'):
        path = self.path.with_name('copy')
        path.write_text('\n'.join(lines) + end)
        return path


def a_server_decides_the_same_again():
    with Journals() as journal:
        said = replay(journal.path, '--check')
        events = sum(1 for line in journal.lines[2:] if not line.startswith('effects '))
        assert f'{events} events replayed' in said and 'all the same' in said, said
        lost = journal.find('ranks_lost')
        assert journal.find('submitted') < lost < len(journal.lines) - 1

        # What a line led to, and how things stood there.
        at = journal.find('submitted') + 1
        said = replay(journal.path, '--until', at, '--show', at)
        assert f'line {at}: submitted request=' in said and '    accepted request=' in said and '    run_step step=' in said, said
        assert '1 running' in said, said
        assert f'line {lost + 1}: ranks_lost' in replay(journal.path, '--show', lost + 1)


def what_was_touched_is_found_at_its_line():
    with Journals() as journal:
        at = journal.find('cancelled')
        lines = list(journal.lines)
        lines[at] = re.sub(r'request=\d+', 'request=999', lines[at])
        said = replay(journal.copy(lines), code=1)
        assert f'line {at + 1}: this event led to other effects' in said and 'request=999' in said and 'now: 0' in said, said
        # A step that drew another token than the ranks had.
        lines = list(journal.lines)
        at = next(i for i, line in enumerate(lines) if re.match(r'step_done .*drawn=\d', line))
        lines[at] = re.sub(r'drawn=(\d+):(\d+):\d+:', r'drawn=\1:\2:5:', lines[at])
        said = replay(journal.copy(lines), code=1)
        assert f'line {at + 1}: ' in said and 'tokens_drawn' in said, said


def what_cannot_be_replayed_says_why():
    with Journals() as journal:
        lines, path = journal.lines, journal.path
        assert 'no journal' in replay(path.with_name('nowhere'), code=3)
        assert 'line 1: not a journal' in replay(journal.copy(['{}']), code=4)
        assert 'line 1: ' in replay(journal.copy(['althing-journal 1', *lines[1:]]), code=4)
        assert 'two whole lines' in replay(journal.copy(lines[:1]), code=4)
        # Killed while it wrote.
        said = replay(journal.copy([*lines[:40], lines[40][:-3]], end=''))
        assert 'line 41 is cut short' in said and 'all the same' in said, said
        at = journal.find('submitted')
        redacted = re.sub(r'prompt=([\d,]+)', lambda prompt: f'prompt=#{prompt[1].count(",") + 1}', lines[at])
        said = replay(journal.copy([*lines[:at], redacted, *lines[at + 1:]]), code=5)
        assert f'line {at + 1}: ' in said and 'redacted' in said, said
        # The second file of a journal that was too long for one.
        said = replay(journal.copy([*lines[:2], 'continued part=2 .', *lines[60:]]), code=5)
        assert 'part 2' in said and 'FILE.1' in said, said
        assert 'journals is required' in replay(code=2)


if __name__ == '__main__':
    main(a_server_decides_the_same_again, what_was_touched_is_found_at_its_line, what_cannot_be_replayed_says_why)
