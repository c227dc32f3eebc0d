#!/usr/bin/env python3
"""The live page in a real browser: it moves under load, its chat works by keyboard alone, it survives its server's absence, it fits a phone, and its
console stays empty. Skips where there is no chromium and chromedriver.

With ALTHING_SCREENSHOTS=FOLDER it also leaves pictures there, of which docs/ has copies.
"""
import os
import pathlib
import signal
import threading

from browser import DOWN, ENTER, RIGHT, TAB, Browser, missing
from harness import Client, Server, main, wait_for

STORY = [{'role': 'user', 'content': 'Tell me a story.'}]
PICTURES = os.environ.get('ALTHING_SCREENSHOTS')


class Load:
    """A few streams at a time, one after another, until it is told to stop."""

    def __init__(self, server, streams=4):
        self.server, self.streams, self.over = server, streams, threading.Event()
        self.thread = threading.Thread(target=self.run)

    def run(self):
        with Client(self.server.endpoint) as client:
            count = 0
            while not self.over.is_set():
                while len(client.open()) < self.streams:
                    count += 1
                    client.submit(f's{count}', STORY, sampling={'completion_tokens_max': 200 + 40 * (count % 5), 'temperature': 1, 'seed': str(count)})
                client.step()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()


def opened(browser, server):
    browser.open(f'http://{server.metrics_address}/')
    wait_for('the page has heard of the server', lambda: browser.text('#state') == 'ready', 20)


def heat(browser):
    """(tokens that the heat map says it counts, its pixels)"""
    label = browser.run('return document.getElementById("heat").getAttribute("aria-label")')
    digits = label.split(' experts, ')[1].split(' in the')[0].replace(',', '') if ' experts, ' in label else '0'
    return int(digits), browser.run('return document.getElementById("heat").toDataURL()')


def it_moves_under_load_and_its_console_stays_empty():
    with Server(ranks=2) as server, Browser() as browser:
        opened(browser, server)
        assert browser.text('#model') == 'tiny' and browser.count('#ranks li') == 2, browser.text('#ranks')
        assert 'serving' in browser.text('#ranks li') and browser.text('#experts-none') == '', browser.text('#experts-none')
        counted, pixels = heat(browser)
        assert counted == 0, 'experts at work before anybody asked'
        with Load(server):
            wait_for('tokens', lambda: float(browser.text('#rate-out').replace(',', '')) > 0, 20)
            wait_for('the heat map moves', lambda: heat(browser)[0] > counted and heat(browser)[1] != pixels, 20)
            counted, pixels = heat(browser)
            wait_for('and goes on moving', lambda: heat(browser)[0] != counted and heat(browser)[1] != pixels, 20)
            wait_for('latencies', lambda: browser.text('#latency-inter td') != '–', 20)
            wait_for('pages', lambda: browser.run('return document.querySelector("#ranks meter").value') > 0, 20)
        wait_for('rest', lambda: browser.text('#running') == '0', 30)
        assert browser.errors() == []


def the_chat_works_by_keyboard_alone():
    with Server(ranks=2) as server, Browser() as browser:
        opened(browser, server)
        browser.press(TAB)
        assert browser.run('return document.activeElement.className') == 'skip', 'the first thing a keyboard finds is the way to the chat'
        browser.press(ENTER)
        wait_for('the question has the focus', lambda: browser.run('return document.activeElement.id') == 'question')
        browser.press(*'What is 12 + 30?', ENTER)
        wait_for('an answer', lambda: 'tokens after a prompt' in browser.text('#chat-note'), 30)
        kinds = browser.run('return [...document.querySelectorAll("#log article")].map((a) => a.className)')
        assert kinds == ['user', 'analysis', 'final'], kinds
        assert '42' in browser.text('#log .final p') and browser.text('#log .analysis p') not in ('', browser.text('#log .final p'))
        browser.press(*'And 2 more?', ENTER)
        wait_for('a second one', lambda: browser.count('#log .final') == 2 and not browser.run('return document.getElementById("send").disabled'), 30)
        browser.type('#forget', ENTER)
        assert browser.count('#log article') == 0
        # The heat map is read out cell by cell.
        browser.run('document.getElementById("heat").focus()')
        browser.press(DOWN, RIGHT)
        wait_for('a cell is read', lambda: browser.text('#heat-cell').startswith('layer 1, expert 1: '))
        assert browser.errors() == []


def text_stays_text():
    with Server(ranks=1) as server, Browser() as browser:
        opened(browser, server)
        evil = '<img src=x onerror="document.title=1"><b>bold</b><script>document.title=2</script>'
        browser.type('#question', evil + ENTER)
        wait_for('an end', lambda: browser.text('#chat-note') != 'The model is answering.' and browser.count('#log article') > 1, 30)
        assert browser.text('#log .user p') == evil
        assert browser.count('#log img, #log b, #log script') == 0 and browser.run('return document.title') == 'Althing'
        # What a model writes takes the same way as what a user writes: elements of ours and text, nothing else.
        tags = browser.run('return [...new Set([...document.querySelectorAll("#log *")].map((e) => e.tagName))].sort()')
        assert tags == ['ARTICLE', 'H3', 'P'], tags
        assert browser.errors() == []


def a_stream_can_be_stopped():
    with Server(ranks=1) as server, Browser() as browser:
        opened(browser, server)
        # The same words again and again make the model talk for long enough.
        browser.type('#question', 'Tell me a story.' + ENTER)
        wait_for('it runs', lambda: browser.count('#log article') > 1, 20)
        browser.run('document.getElementById("stop").click()')
        wait_for('it has ended', lambda: not browser.run('return document.getElementById("send").disabled'), 10)
        wait_for('its pages are free', lambda: server.metric('althing_kv_blocks_used') == 0, 10)
        assert browser.errors() == []


def failures_are_told_as_they_happen():
    with Server('--spares', '1', ranks=2) as server, Browser() as browser:
        opened(browser, server)
        assert browser.text('#members').startswith('1 spare'), browser.text('#members')
        with Load(server):
            wait_for('tokens', lambda: float(browser.text('#rate-out').replace(',', '')) > 0, 20)
            os.kill(server.children()['rank1'], signal.SIGKILL)
            wait_for('the death and its end', lambda: browser.count('#events li') >= 2, 20)
        told = browser.run('return [...document.querySelectorAll("#events .what")].map((e) => e.textContent)')
        assert told[-1] == 'Rank 1 died' and told[-2].startswith('Recovered from rank 1'), told
        assert browser.count('#events .phases i') > 0 and 'by spare' in browser.text('#events'), browser.text('#events')


def an_absent_server_is_told_and_waited_for():
    with Browser() as browser:
        with Server(ranks=1) as server:
            address = server.metrics_address
            opened(browser, server)
            os.kill(server.process.pid, signal.SIGKILL)
            server.process.wait()
            wait_for('the page says so', lambda: 'does not answer' in browser.text('#alarm') and browser.text('#state') == 'no answer', 20)
            assert browser.text('#model') == 'tiny', 'what was known last is still shown'
        with Server('--metrics', address, ranks=1):
            wait_for('it goes on', lambda: browser.text('#state') == 'ready' and browser.run('return document.getElementById("alarm").hidden'), 20)


def a_hidden_page_does_not_ask():
    hide = 'Object.defineProperty(document, "hidden", {value: arguments[0], configurable: true}); document.dispatchEvent(new Event("visibilitychange"))'
    asked = 'return performance.getEntriesByType("resource").filter((e) => e.name.endsWith("/live.json")).length'
    with Server(ranks=1) as server, Browser() as browser:
        opened(browser, server)
        wait_for('it asks', lambda: browser.run(asked) > 1)
        browser.run(hide, True)
        # What was on its way may still come; after that, three polls' time of nothing.
        quiet = browser.run('return new Promise((done) => setTimeout(done, 1500)).then(() => { %s })' % asked)
        later = browser.run('return new Promise((done) => setTimeout(done, 3000)).then(() => { %s })' % asked)
        assert quiet == later, (quiet, later)
        browser.run(hide, False)
        wait_for('it asks again', lambda: browser.run(asked) > later)


def it_fits_a_phone_and_everything_has_a_name():
    with Server(ranks=2) as server:
        for width in (390, 1280):
            with Browser(width=width, height=844, reduced_motion='reduce') as browser, Load(server, 2):
                opened(browser, server)
                wait_for('tokens', lambda: float(browser.text('#rate-out').replace(',', '')) > 0, 20)
                wide = browser.run('return [document.documentElement.scrollWidth, window.innerWidth]')
                assert wide[0] <= wide[1] == width, f'it scrolls sideways: {wide}'
                names = [browser.label(element) for element in browser.elements('button:not([hidden]), input, select, textarea, canvas[role], meter')]
                assert names and all(names), names
                assert browser.run('return document.getAnimations().length') == 0, 'it moves where no motion is wished for'
                assert browser.errors() == []


def pictures():
    """Light and dark, desk and phone, after a death and in the middle of an answer."""
    if not PICTURES:
        return
    folder = pathlib.Path(PICTURES)
    with Server('--spares', '1', ranks=4) as server, Load(server, 6):
        with Browser() as browser:
            opened(browser, server)
            wait_for('tokens', lambda: float(browser.text('#rate-out').replace(',', '')) > 0, 20)
            os.kill(server.children()['rank2'], signal.SIGKILL)
            wait_for('the death and its end', lambda: browser.count('#events li') >= 2, 20)
        for scheme in ('light', 'dark'):
            for width, height in ((1280, 900), (390, 844)):
                with Browser(width, height, color_scheme=scheme) as browser:
                    opened(browser, server)
                    browser.type('#question', 'What is 12 + 30?' + ENTER)
                    wait_for('an answer', lambda: 'tokens after a prompt' in browser.text('#chat-note'), 60)
                    for _ in range(2):
                        points = browser.run('return document.querySelector("#spark-out polyline").getAttribute("points").split(" ").length')
                        wait_for('a history', lambda: browser.run(
                            'return document.querySelector("#spark-out polyline").getAttribute("points").split(" ").length') > points + 8, 60)
                    browser.picture(folder / f'page-{scheme}-{width}.png')


if __name__ == '__main__':
    main(it_moves_under_load_and_its_console_stays_empty, the_chat_works_by_keyboard_alone, text_stays_text, a_stream_can_be_stopped,
         failures_are_told_as_they_happen, an_absent_server_is_told_and_waited_for, a_hidden_page_does_not_ask,
         it_fits_a_phone_and_everything_has_a_name, pictures, missing=missing())
