# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium for tests, over its DevTools protocol on two pipes: no driver, no WebSocket, no package
of Python.

    with Browser() as browser:
        page = browser.page(1280, 800, dark=True)
        page.go("http://127.0.0.1:9411/")
        page.wait("document.querySelector('tbody tr')")
        page.key("Tab")
        page.screenshot(path)

Every request that a page makes, or tries to make, is in page.requests; what its script says wrong, in
page.errors.
"""
import base64
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
TIMEOUT_S = 60
KEYS = {"Tab": 9, "Enter": 13, "Escape": 27, "Space": 32, "PageUp": 33, "PageDown": 34, "End": 35, "Home": 36,
        "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40}


def find():
    """The program; None: there is none here."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def above(fd):
    """The same file at a number that the shell does not overwrite: it makes 3 and 4 for the browser."""
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(fd)
    return high


class Navigated(AssertionError):
    """The page that was asked has gone: another comes in its place."""


class Page:
    def __init__(self, browser, session):
        self.browser, self.session = browser, session
        self.requests, self.errors = [], []

    def call(self, method, **parameters):
        return self.browser.call(method, parameters, self.session)

    def heard(self, method, parameters):  # on the reader's thread
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(parameters["exceptionDetails"].get("exception", {}).get("description", "exception"))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] == "error" and parameters["entry"]["source"] != "network":
            self.errors.append(parameters["entry"]["text"])

    def go(self, url):
        self.call("Page.navigate", url=url)

    def reload(self):
        """Until the page that was there is gone."""
        self.run("window.reloading = true")
        self.call("Page.reload")
        self.wait("!window.reloading && document.readyState === 'complete'")

    def run(self, expression):
        """The expression's value, as JSON has it; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression, seconds=TIMEOUT_S):
        """Until it is true; what it was then. The page may go and another come meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            try:
                value = self.run(f"(() => {{ try {{ const v = {expression}; return v instanceof Node ? true : v }} catch {{ return null }} }})()")
            except Navigated:
                value = None
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"not within {seconds} s: {expression}\nerrors: {self.errors}\n"
                             f"page: {self.run('document.body.innerText')[:2000]}")

    def key(self, name, times=1):
        text = {"Enter": "\r", "Space": " "}.get(name)
        for _ in range(times):
            key = {"key": " " if name == "Space" else name, "code": name, "windowsVirtualKeyCode": KEYS[name]}
            self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **key, **({"text": text} if text else {}))
            self.call("Input.dispatchKeyEvent", type="keyUp", **key)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def theme(self, dark):
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def screenshot(self, path, whole=False):
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        pathlib.Path(path).write_bytes(base64.b64decode(data))


class Browser:
    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        (to_read, self.to), (self.of, of_write) = ([above(fd) for fd in os.pipe()] for _ in range(2))
        command = ["/bin/bash", "-c", f'exec "$@" 3<&{to_read} 4>&{of_write}', "bash", find(), "--headless", "--no-sandbox",
                   "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}", "--disable-gpu", "--no-first-run",
                   "--disable-background-networking", "--disable-component-update", "--hide-scrollbars",
                   "--force-color-profile=srgb", "--disable-dev-shm-usage", "about:blank"]
        self.process = subprocess.Popen(command, pass_fds=(to_read, of_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_read)
        os.close(of_write)
        self.number, self.answers, self.pages, self.came = 0, {}, {}, threading.Condition()
        threading.Thread(target=self.read, daemon=True).start()
        return self

    def __exit__(self, *_):
        try:
            self.call("Browser.close", {})
        except (AssertionError, OSError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.to)
        self.folder.cleanup()

    def read(self):
        rest = b""
        while True:
            more = os.read(self.of, 1 << 20)
            if not more:
                with self.came:
                    self.answers[None] = True
                    self.came.notify_all()
                return
            *whole, rest = (rest + more).split(b"\0")
            for one in map(json.loads, whole):
                if "id" in one:
                    with self.came:
                        self.answers[one["id"]] = one
                        self.came.notify_all()
                elif one.get("sessionId") in self.pages:
                    self.pages[one["sessionId"]].heard(one["method"], one["params"])

    def call(self, method, parameters, session=None):
        self.number += 1
        number = self.number
        message = {"id": number, "method": method, "params": parameters, **({"sessionId": session} if session else {})}
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self.to, data):]
        with self.came:
            if not self.came.wait_for(lambda: number in self.answers or None in self.answers, TIMEOUT_S) or number not in self.answers:
                raise AssertionError(f"{method}: the browser does not answer")
            answer = self.answers.pop(number)
        if "error" in answer:
            gone = any(word in answer["error"]["message"] for word in ("navigated", "context"))
            raise (Navigated if gone else AssertionError)(f"{method}: {answer['error']}")
        return answer["result"]

    def page(self, width=1280, height=800, dark=False, scale=1):
        target = self.call("Target.createTarget", {"url": "about:blank"})["targetId"]
        session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        page = self.pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.call(f"{domain}.enable")
        page.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False)
        page.theme(dark)
        return page
