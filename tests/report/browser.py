"""Debian's Chromium, driven through its debugging pipe: what a page shows, asks for and complains about."""

import base64
import json
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from pathlib import Path


CHROMIUM = shutil.which("chromium")


class Page:
    """A tab. `problems` collects console messages and exceptions, `requests` the addresses that were asked for."""

    def __init__(self, chromium: "Chromium", session: str):
        self._chromium, self._session = chromium, session
        self.problems: list[str] = []
        self.requests: list[str] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params) -> dict:
        return self._chromium.call(method, self._session, self._handle, **params)

    def open(self, path: Path, width: int, scheme: str) -> None:
        """Open a file in a window of a width, with a colour scheme, and wait until it is loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.loaded = False
        self.call("Page.navigate", url=path.absolute().as_uri())
        while not self.loaded:
            self._chromium.read(self._session, self._handle)

    def evaluate(self, expression: str):
        """The value of a JavaScript expression."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, path: Path) -> None:
        """Save a picture of the whole page."""
        answer = self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(answer["data"]))

    def _handle(self, method: str, params: dict) -> None:
        if method == "Page.loadEventFired":
            self.loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded"):
            self.problems.append(json.dumps(params))


class Chromium:
    """A headless Chromium; commands go in and answers come out as JSON, each ended by a zero byte."""

    def __init__(self, profile: Path):
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += ["--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        start = f'exec "$0" "$@" 3<&{commands} 4>&{answers}'
        self._process = subprocess.Popen(
            ["bash", "-c", start, CHROMIUM, *options],
            pass_fds=(commands, answers),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands)
        os.close(answers)
        self._rest, self._last_id = b"", 0

    def new_page(self) -> Page:
        target = self.call("Target.createTarget", None, None, url="about:blank")["targetId"]
        return Page(self, self.call("Target.attachToTarget", None, None, targetId=target, flatten=True)["sessionId"])

    def call(self, method: str, session: str | None, handle, **params) -> dict:
        """Send a command and return its answer; events of the session that come before it are handled."""
        self._last_id += 1
        message = {"id": self._last_id, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read(session, handle)
            if answer.get("id") == self._last_id:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def read(self, session: str | None, handle) -> dict:
        while b"\0" not in self._rest:
            chunk = os.read(self._answers, 1 << 16)
            assert chunk, "Chromium has ended"
            self._rest += chunk
        message, self._rest = self._rest.split(b"\0", 1)
        message = json.loads(message)
        if "method" in message and message.get("sessionId") == session and handle is not None:
            handle(message["method"], message["params"])
        return message

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        os.close(self._commands)
        os.close(self._answers)


@contextmanager
def browser(profile: Path):
    """A running Chromium with a profile of its own."""
    chromium = Chromium(profile)
    try:
        yield chromium
    finally:
        chromium.close()
