"""A page in headless Chromium, driven over its DevTools protocol (chromedevtools.github.io/devtools-protocol): messages of
JSON, each ended by a zero byte, on two pipes. The network is off."""
import atexit
import base64
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time

from tap import Skip, expect

DEADLINE_S = 120  # for one answer, on a loaded machine

# What a page of the report is checked for: lists of what is wrong.
SEEN = """Array.from(document.querySelectorAll('figure svg')).filter(s => getComputedStyle(s).display != 'none')"""

# Boxes of texts in a figure must be apart, and within the page.
OVERLAPS = """(() => { const bad = [], width = document.documentElement.clientWidth;
for (const svg of %s) { const boxes = Array.from(svg.querySelectorAll('text')).map(t => [t.textContent, t.getBoundingClientRect()]);
  for (const [name, a] of boxes) if (a.left < -0.5 || a.right > width + 0.5) bad.push('outside: ' + name);
  for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) { const [n, a] = boxes[i], [m, b] = boxes[j];
    const x = Math.min(a.right, b.right) - Math.max(a.left, b.left), y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (x > 1 && y > 3) bad.push(svg.parentElement.id + ': ' + n + ' | ' + m + ' ' + x.toFixed(1) + 'x' + y.toFixed(1)); } }
return bad; })()""" % SEEN

# WCAG 2.2, 1.4.3: 4.5 : 1 for texts against what lies under them: paper, or a bar.
CONTRAST = """(() => { const bad = [];
const rgb = c => c.match(/[\\d.]+/g).slice(0, 3).map(Number);
const light = c => { const [r, g, b] = rgb(c).map(v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
  return .2126 * r + .7152 * g + .0722 * b };
const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => p - q); return (y + .05) / (x + .05) };
const paper = getComputedStyle(document.body).backgroundColor;
for (const e of document.querySelectorAll('h1,h2,h3,p,figcaption,summary,dt,dd,th,td')) { const s = getComputedStyle(e);
  if (ratio(s.color, paper) < 4.5) bad.push(e.tagName + ' ' + ratio(s.color, paper).toFixed(2)); }
for (const svg of %s) { const bars = Array.from(svg.querySelectorAll('rect[data-v]')).map(b => [b, b.getBoundingClientRect()]);
  for (const t of svg.querySelectorAll('text')) { const s = getComputedStyle(t), box = t.getBoundingClientRect();
    if (s.stroke != 'none') continue;
    const x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
    const under = bars.filter(([b, r]) => r.left <= x && x <= r.right && r.top <= y && y <= r.bottom).pop();
    const ground = under && !t.closest('.mark') ? getComputedStyle(under[0]).fill : paper;
    if (ground.startsWith('url')) { bad.push('on a pattern: ' + t.textContent); continue; }
    if (ratio(s.fill, ground) < 4.5) bad.push(svg.parentElement.id + ' ' + t.textContent + ' ' + ratio(s.fill, ground).toFixed(2)); } }
return bad; })()""" % SEEN


class Chromium:
    def __init__(self):
        program = shutil.which("chromium") or shutil.which("chromium-browser")
        if not program:
            raise Skip("no chromium")
        self.folder = tempfile.mkdtemp()
        to_browser, self.write_fd = os.pipe()
        self.read_fd, from_browser = os.pipe()
        self.process = subprocess.Popen(
            ["bash", "-c", f"exec 3<&{to_browser} 4>&{from_browser}; exec \"$@\"", "chromium", program, "--headless",
             "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe", "--no-first-run",
             f"--user-data-dir={self.folder}", "about:blank"],
            pass_fds=(to_browser, from_browser), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.pending, self.number, self.events, self.session = b"", 0, [], None

    def empty(self):
        """Opens a new page, and closes all others."""
        self.session = None
        old = [t["targetId"] for t in self.call("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        for other in old:
            self.call("Target.closeTarget", targetId=other)
        self.session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=-1, uploadThroughput=-1)

    def close(self):
        self.process.kill()
        self.process.wait()
        os.close(self.read_fd)
        os.close(self.write_fd)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _message(self):
        while b"\0" not in self.pending:
            more = os.read(self.read_fd, 1 << 20)
            expect(more, "chromium has ended")
            self.pending += more
        message, _, self.pending = self.pending.partition(b"\0")
        return json.loads(message)

    def call(self, method, **parameters):
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_fd, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + DEADLINE_S
        while time.monotonic() < end:
            answer = self._message()
            if answer.get("id") == self.number:
                expect("error" not in answer, f"{method}: {answer.get('error')}")
                return answer["result"]
            self.events.append(answer)
        expect(False, f"{method}: no answer")
        return None

    def wait_for(self, event):
        while not any(e.get("method") == event for e in self.events):
            self.events.append(self._message())

    def open(self, path, width=1280, dark=False, media=""):
        """Seconds until the page has loaded."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])
        self.events = []
        begin = time.monotonic()
        self.call("Page.navigate", url="file://" + os.path.abspath(path))
        self.wait_for("Page.loadEventFired")
        return time.monotonic() - begin

    def evaluate(self, expression):
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        expect("exceptionDetails" not in answer, expression, answer.get("exceptionDetails"))
        return answer["result"].get("value")

    def frames(self):
        """Waits until the page has been drawn twice."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def move_until(self, x, y, condition):
        """Moves the pointer to and fro by a pixel, as a hand does, until the condition holds, since an event may be
        lost while the page is being drawn."""
        for i in range(100):
            self.point_at(x + i % 2, y)
            self.frames()
            if self.evaluate(condition):
                return
        expect(False, f"not with the pointer at {x}, {y}: {condition}")

    def point_at(self, x, y):
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def press(self, key, code):
        """Presses a key without a character (Tab), or one with a character ("\\r" for Enter)."""
        text = {"Enter": "\r"}.get(key)
        more = {"text": text} if text else {}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", key=key, code=key, windowsVirtualKeyCode=code, **more)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def printed(self):
        """The page as PDF."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=False)["data"])

    def screenshot(self, path):
        image = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(image))

    def complaints(self):
        """Messages on the console, and requests for anything but the page."""
        self.evaluate("1")
        said = [e["params"]["entry"]["text"] for e in self.events if e.get("method") == "Log.entryAdded"]
        said += [str(e["params"]["args"]) for e in self.events if e.get("method") == "Runtime.consoleAPICalled"]
        said += [str(e["params"]["exceptionDetails"]) for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        urls = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return said + urls[1:]


_started = []  # the Chromium of this program


@contextlib.contextmanager
def Browser():
    """An empty page, in a Chromium that the first test starts and others use again."""
    if not _started:
        _started.append(Chromium())
    chromium, = _started
    try:
        chromium.empty()
        yield chromium
    except BaseException:  # the next test has another one
        _stop()
        raise


@atexit.register
def _stop():
    while _started:
        _started.pop().close()
