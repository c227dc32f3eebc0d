#!/usr/bin/env python3
"""The live page of whole servers, by a plain HTTP client: every file and its headers, who is turned away, chats that stream in channels, are left, or
fill the house, what /live.json and /events.json say of deaths, and `althing top`.
"""
import contextlib
import http.client
import json
import os
import pty
import select
import signal
import socket
import subprocess
import time

from harness import BINARY, PATIENCE, ROOT, Client, Server, main, wait_for

FILES = {'/': 'text/html', '/page.css': 'text/css', '/page.js': 'text/javascript', '/chat.js': 'text/javascript',
         '/heat_map.js': 'text/javascript', '/icon.svg': 'image/svg+xml'}
SOURCES = {'/': 'index.html'}
QUESTION = [{'role': 'user', 'content': 'What is 12 + 30?'}]
STORY = [{'role': 'user', 'content': 'Tell me a story.'}]


def fetch(server, path, method='GET', body=None, headers=None, host=None):
    """(status, headers, body)"""
    connection = http.client.HTTPConnection(server.metrics_address, timeout=10 * PATIENCE)
    connection.request(method, path, body, {'Host': host or server.metrics_address, **(headers or {})})
    answer = connection.getresponse()
    result = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    connection.close()
    return result


def live(server):
    status, _, body = fetch(server, '/live.json')
    return json.loads(body) if status == 200 else {}


def events(server, after=0):
    return json.loads(fetch(server, f'/events.json?after={after}')[2])


class Chat:
    """One question of the page, read event by event."""

    def __init__(self, server, messages, tab=None, **members):
        self.connection = http.client.HTTPConnection(server.metrics_address, timeout=30 * PATIENCE)
        body = json.dumps({'tab': tab or os.urandom(8).hex(), 'messages': messages, **members})
        self.connection.request('POST', '/chat', body, {'Content-Type': 'application/json', 'Origin': f'http://{server.metrics_address}'})
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def events(self):
        for line in self.answer:
            if line.startswith(b'data: '):
                yield json.loads(line[6:])

    def first(self, kind):
        return next(event for event in self.events() if event['type'] == kind)

    def leave(self):
        self.answer.close()
        self.connection.close()


def story_of(messages):
    """[[channel, text, ended] …] of a chat's events, and its end."""
    story, end = [], None
    for message in messages:
        assert end is None, 'something after the end'
        if message['type'] in ('done', 'error'):
            end = message
        for event in message.get('events', []):
            if event['type'] == 'message_started':
                assert event['index'] == len(story)
                story.append([event['channel'], '', False])
            elif event['type'] == 'text':
                story[event['index']][1] += event['text']
            else:
                story[event['index']][2] = True
    return story, end


def every_file_is_served_as_it_was_built():
    with Server(ranks=1) as server:
        for path, kind in FILES.items():
            status, headers, body = fetch(server, path)
            assert status == 200 and headers['content-type'].startswith(kind), (path, status, headers)
            assert body == (ROOT / 'monitoring/page' / SOURCES.get(path, path[1:])).read_bytes(), path
            assert headers['content-security-policy'].startswith("default-src 'self';"), headers
            assert headers['x-content-type-options'] == 'nosniff' and headers['x-frame-options'] == 'DENY', headers
            assert fetch(server, path, headers={'If-None-Match': headers['etag']})[::2] == (304, b''), path
        for path in ('/index.html', '/page', '/page.js/', '/../etc/passwd', '/%2e%2e/etc/passwd', '/monitoring/page/page.js'):
            assert fetch(server, path)[0] == 404, path


def strangers_are_turned_away():
    with Server(ranks=1) as server:
        json_type = {'Content-Type': 'application/json'}
        own = {'Origin': f'http://{server.metrics_address}'}
        for path in ('/', '/live.json', '/events.json'):
            assert fetch(server, path, host='evil.example')[0] == 403, path
        body = json.dumps({'tab': '0123456789', 'messages': QUESTION})
        for headers, expected in (({**json_type, 'Origin': 'http://evil.example'}, 403), (json_type, 403), ({**own, 'Content-Type': 'text/plain'}, 415),
                                  ({**json_type, **own, 'Sec-Fetch-Site': 'cross-site'}, 403)):
            assert fetch(server, '/chat', 'POST', body, headers)[0] == expected, headers
        assert fetch(server, '/chat', 'POST', body, {**json_type, 'Origin': 'http://evil.example'}, host='evil.example')[0] == 403
        assert fetch(server, '/metrics', host='evil.example')[0] == 200
        assert server.metric('althing_requests_accepted_total') == 0, 'a stranger made the model work'
        for wrong in ('{', '[]', json.dumps({'tab': '0123456789', 'messages': QUESTION, 'prompt_tokens': [1]}), json.dumps({'messages': QUESTION})):
            status, _, answer = fetch(server, '/chat', 'POST', wrong, {**json_type, **own})
            assert status == 400 and json.loads(answer)['error']['message'], (wrong, status, answer)


def a_chat_streams_its_channels():
    with Server(ranks=2) as server, Client(server.endpoint) as client:
        client.submit('same', QUESTION, sampling={'temperature': 0})
        client.finish()
        chat = Chat(server, QUESTION, sampling={'temperature': 0})
        assert chat.status == 200 and chat.answer.getheader('Content-Type').startswith('text/event-stream')
        heard = list(chat.events())
        assert heard[0]['type'] == 'accepted' and sum(message['type'] == 'delta' for message in heard) > 1, 'it did not stream'
        story, end = story_of(heard)
        assert end['type'] == 'done' and end['reason'] == 'stop', end
        assert story == client.streams['same'].story, 'the page is told something else than a client'
        assert {channel for channel, _, _ in story} == {'analysis', 'final'} and '42' in story[-1][1], story
        assert server.metric('althing_requests_total') == 2


def a_browser_that_leaves_cancels_its_chat():
    with Server('--client-silence-ms', '2000', ranks=2) as server:
        chat = Chat(server, STORY, sampling={'completion_tokens_max': 1500, 'temperature': 1, 'ignore_stop': True}, tab='leaving-tab')
        chat.first('delta')
        wait_for('it holds pages', lambda: any(rank['kv_pages_used'] > 0 for rank in live(server)['ranks']))
        assert Chat(server, QUESTION, tab='leaving-tab').status == 429, 'two streams in one tab'
        chat.leave()
        wait_for('its pages are free again', lambda: server.metric('althing_kv_blocks_used') == 0, 5)
        wait_for('it counts as cancelled', lambda: 'althing_requests_total{outcome="cancelled"} 1' in server.get('/metrics')[1], 5)
        again = Chat(server, QUESTION, tab='leaving-tab')
        assert story_of(again.events())[1]['type'] == 'done', 'the tab is free again'
        wait_for('their sessions are over', lambda: server.metric('althing_sessions') == 0, 15)


def eight_chats_leave_room_for_everything_else():
    with Server(ranks=2) as server:
        chats = [Chat(server, STORY, sampling={'completion_tokens_max': 1500, 'temperature': 1, 'seed': seed, 'ignore_stop': True}) for seed in range(8)]
        for chat in chats:
            assert chat.status == 200
            chat.first('delta')
        wait_for('all eight run', lambda: live(server)['running'] == 8, 10)
        # They have got their first words; from here on nobody reads them, and still others are served.
        for _ in range(20):
            assert server.get('/ready')[0] == 200 and server.get('/metrics')[0] == 200 and fetch(server, '/')[0] == 200
        ninth = Chat(server, QUESTION)
        assert ninth.status == 429 and json.loads(ninth.answer.read())['error']['code'] == 'busy'
        for chat in chats:
            chat.leave()
        wait_for('all are cancelled', lambda: server.metric('althing_kv_blocks_used') == 0, 10)
        assert Chat(server, QUESTION).status == 200, 'there is room again'


def idle_connections_hold_up_no_probe():
    with Server(ranks=1) as server:
        host, port = server.metrics_address.rsplit(':', 1)
        idle = [socket.create_connection((host, int(port))) for _ in range(40)]
        began = time.monotonic()
        assert fetch(server, '/live')[0] == 200
        assert time.monotonic() - began < 1.0 * PATIENCE, time.monotonic() - began
        for connection in idle:
            connection.close()


def live_figures_follow_the_load():
    with Server('--dp', '2', ranks=2) as server, Client(server.endpoint) as client:
        before = live(server)
        assert before['state'] == 'ready' and before['tokens_out'] == 0 and before['first_token_ms']['p50'] is None, before
        assert [(rank['state'], rank['dp_group'], rank['experts'] > 0) for rank in before['ranks']] == [('serving', 0, True), ('serving', 1, True)], before
        for i in range(4):
            client.submit(f's{i}', STORY, sampling={'completion_tokens_max': 300, 'temperature': 1, 'seed': str(i), 'ignore_stop': True})
        seen = wait_for('it shows load', lambda: client.step() or next((f for f in [live(server)] if f['running'] and f['tokens_out_per_second'] > 0), None))
        assert sum(rank['kv_pages_used'] for rank in seen['ranks']) > 0, seen
        client.finish()
        wait_for('and its end', lambda: live(server)['running'] == 0 and live(server)['requests_ended'] == 4)
        after = wait_for('counted', lambda: next((f for f in [live(server)] if f['first_token_ms']['count'] == 4), None))
        assert after['tokens_out'] == sum(len(stream.tokens) for stream in client.streams.values()), after
        assert 0 < after['inter_token_ms']['p50'] <= after['inter_token_ms']['p95'] <= after['inter_token_ms']['p99'], after


def deaths_are_told_with_their_recoveries_and_outlive_the_core():
    with Server('--spares', '1', ranks=2) as server, Client(server.endpoint) as client:
        assert events(server) == {'newest': 0, 'oldest': 0, 'events': []}
        client.submit('s', STORY, sampling={'completion_tokens_max': 400, 'temperature': 1, 'seed': '1', 'ignore_stop': True})
        wait_for('tokens', lambda: client.step() or client.streams['s'].tokens)
        os.kill(server.children()['rank1'], signal.SIGKILL)
        wait_for('the recovery is told', lambda: client.step() or any(e['kind'] == 'recovered' for e in events(server)['events']))
        died, recovered = events(server)['events'][:2]
        assert (died['kind'], died['rank'], died['cause']) == ('rank_died', 1, 'exit'), died
        assert (recovered['kind'], recovered['rank'], recovered['recovered_by'], recovered['streams']) == ('recovered', 1, 'spare', 1), recovered
        assert recovered['next_epoch'] > recovered['epoch'] == died['epoch'], recovered
        assert abs(sum(recovered['phases_ms'].values()) - recovered['total_ms']) < 1, recovered
        old = events(server)['newest']
        os.kill(server.children()['core'], signal.SIGKILL)
        with contextlib.suppress(AssertionError):
            client.finish()
        wait_for('the next core knows', lambda: any(e['kind'] == 'core_recovered' for e in events(server, old)['events']) if live(server) else False, 15)
        told = events(server)['events']
        assert [event['number'] for event in told] == list(range(1, len(told) + 1)), 'numbers go on'
        assert told[:2] == [died, recovered], 'what happened before is still told'
        assert any(event['kind'] == 'core_died' for event in told), told
        assert client.streams['s'].end['type'] == 'done', client.streams['s'].end


def top(server, *flags):
    return subprocess.run([str(BINARY), 'top', '--address', server if isinstance(server, str) else server.metrics_address, *flags],
                          capture_output=True, text=True, timeout=20 * PATIENCE)


def top_prints_once():
    with Server(ranks=2) as server:
        screen = top(server, '--once')
        assert screen.returncode == 0 and 'ready' in screen.stdout and 'serving' in screen.stdout and 'EVENTS' in screen.stdout, screen
        assert '\033' not in screen.stdout, 'colour where there is no terminal'
        assert '\033[32mready' in top(server, '--once', '--colour', 'always').stdout
        line = json.loads(top(server, '--once', '--json').stdout)
        assert line['live']['state'] == 'ready' and line['events'] == [], line
        address = server.metrics_address
    gone = top(address, '--once')
    assert gone.returncode == 3 and f'nobody answers at http://{address}' in gone.stderr and 'althing serve' in gone.stderr, gone
    assert top('example.com:80', '--once').returncode == 2


def top_fills_a_terminal_and_gives_it_back():
    with Server(ranks=2) as server:
        master, slave = pty.openpty()
        subprocess.run(['stty', 'rows', '20', 'cols', '70'], stdin=slave, check=True)
        process = subprocess.Popen([str(BINARY), 'top', '--address', server.metrics_address], stdin=slave, stdout=slave, stderr=subprocess.PIPE)
        os.close(slave)
        text = ''

        def shows(part, after=0):
            nonlocal text
            while select.select([master], [], [], 0)[0]:
                with contextlib.suppress(OSError):  # the other end is closed
                    text += os.read(master, 65536).decode(errors='replace')
                    continue
                break
            return part in text[after:]

        wait_for('a screen', lambda: shows('serving'))
        assert text.startswith('\033[?1049h'), 'it takes the whole screen'
        one = len(text)
        wait_for('another', lambda: shows('serving', one), 5)
        os.kill(server.children()['rank1'], signal.SIGKILL)
        wait_for('the death is seen', lambda: shows('rank_died rank 1'), 10)
        os.write(master, b'q')
        assert process.wait(5 * PATIENCE) == 0
        shows('')
        assert text.endswith('\033[?25h\033[?1049l'), 'it gives the screen back'
        os.close(master)


if __name__ == '__main__':
    main(every_file_is_served_as_it_was_built, strangers_are_turned_away, a_chat_streams_its_channels, a_browser_that_leaves_cancels_its_chat,
         eight_chats_leave_room_for_everything_else, idle_connections_hold_up_no_probe, live_figures_follow_the_load, deaths_are_told_with_their_recoveries_and_outlive_the_core,
         top_prints_once, top_fills_a_terminal_and_gives_it_back)
