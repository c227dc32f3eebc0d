"""A headless Chromium, driven through chromedriver by the W3C WebDriver protocol, which is JSON over HTTP: nothing but the two programs is needed.

Invariant: whatever the page complains about in its console is kept, and `errors()` gives it to the test.
"""
import base64
import http.client
import json
import shutil
import socket
import subprocess
import tempfile

from harness import PATIENCE, wait_for

ELEMENT = 'element-6066-11e4-a52e-4f735466cecf'
ENTER, TAB, DOWN, RIGHT = '\ue007', '\ue004', '\ue015', '\ue014'


def missing():
    """Why no browser can be driven here; '' when one can."""
    absent = [name for name in ('chromium', 'chromedriver') if shutil.which(name) is None]
    return f'{" and ".join(absent)} not installed (apt-get install chromium chromium-driver)' if absent else ''


class Browser:
    def __init__(self, width=1280, height=900, **media):
        self.folder = tempfile.TemporaryDirectory(prefix='althing-browser-')
        with socket.socket() as probe:
            probe.bind(('127.0.0.1', 0))
            self.port = probe.getsockname()[1]
        self.driver = subprocess.Popen(['chromedriver', f'--port={self.port}'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.session = None
        try:
            wait_for('chromedriver answers', self.is_up, 30)
            # Root has no sandbox of its own in containers; the only page it opens is ours.
            options = {'args': ['--headless=new', '--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--hide-scrollbars',
                                f'--user-data-dir={self.folder.name}', f'--window-size={width},{height}']}
            answer = self.call('POST', '/session', {'capabilities': {'alwaysMatch': {
                'browserName': 'chrome', 'goog:chromeOptions': options, 'goog:loggingPrefs': {'browser': 'ALL'}}}})
            self.session = answer['sessionId']
            self.devtools('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
            if media:
                self.devtools('Emulation.setEmulatedMedia', features=[{'name': f'prefers-{name.replace("_", "-")}', 'value': value} for name, value in media.items()])
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self.session:
            self.call('DELETE', f'/session/{self.session}')
        self.driver.terminate()
        self.driver.wait()
        self.folder.cleanup()

    def is_up(self):
        try:
            return self.call('GET', '/status')['ready']
        except OSError:
            return False

    def call(self, method, path, members=None):
        connection = http.client.HTTPConnection('127.0.0.1', self.port, timeout=60 * PATIENCE)
        connection.request(method, path, None if members is None and method != 'POST' else json.dumps(members or {}), {'Content-Type': 'application/json'})
        answer = connection.getresponse()
        value = json.loads(answer.read())['value']
        connection.close()
        assert answer.status == 200, (path, value)
        return value

    def here(self, method, path, **members):
        return self.call(method, f'/session/{self.session}{path}', members)

    def devtools(self, command, **parameters):
        return self.here('POST', '/goog/cdp/execute', cmd=command, params=parameters)

    def open(self, url):
        self.here('POST', '/url', url=url)

    def run(self, script, *arguments):
        """What a script in the page returns."""
        return self.here('POST', '/execute/sync', script=script, args=list(arguments))

    def text(self, selector):
        return self.run('return document.querySelector(arguments[0])?.textContent ?? ""', selector)

    def count(self, selector):
        return self.run('return document.querySelectorAll(arguments[0]).length', selector)

    def element(self, selector):
        return self.here('POST', '/element', using='css selector', value=selector)[ELEMENT]

    def type(self, selector, keys):
        self.here('POST', f'/element/{self.element(selector)}/value', text=keys)

    def press(self, *keys):
        """Keys to whatever has the focus."""
        actions = [{'type': kind, 'value': key} for key in keys for kind in ('keyDown', 'keyUp')]
        self.here('POST', '/actions', actions=[{'type': 'key', 'id': 'keyboard', 'actions': actions}])

    def label(self, element):
        """What a screen reader would call it."""
        return self.here('GET', f'/element/{element}/computedlabel')

    def elements(self, selector):
        return [found[ELEMENT] for found in self.here('POST', '/elements', using='css selector', value=selector)]

    def errors(self):
        """What the console has said since the last time, with its level."""
        return [(entry['level'], entry['message']) for entry in self.here('POST', '/se/log', type='browser')]

    def picture(self, path):
        """The whole page as a PNG."""
        size = self.run('return [document.documentElement.scrollWidth, document.documentElement.scrollHeight]')
        clip = {'x': 0, 'y': 0, 'width': size[0], 'height': size[1], 'scale': 1}
        shot = self.devtools('Page.captureScreenshot', format='png', clip=clip, captureBeyondViewport=True)
        with open(path, 'wb') as file:
            file.write(base64.b64decode(shot['data']))
