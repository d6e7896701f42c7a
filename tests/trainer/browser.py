"""A real Chromium without a window, driven by its DevTools protocol.

It uses a pair of pipes (--remote-debugging-pipe: JSON with a zero byte behind each message), so
that it needs no port and no package. chromedevtools.github.io lists the methods.
"""

import base64
import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.hosts import DEADLINE, wait_until

OPTIONS = (
    "--headless=new",
    "--no-sandbox",  # CI is root.
    "--remote-debugging-pipe",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    # Without the browser's own requests to other hosts.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-proxy-server",
    "--force-color-profile=srgb",
)


def find() -> str:
    """The browser; without one the test is skipped, but not in CI."""
    found = shutil.which("chromium") or shutil.which("google-chrome") or shutil.which("chrome")
    if found:
        return found
    message = "there is no chromium; on Debian: apt-get install chromium"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)


class Page:
    """One tab, and all that happened in it."""

    def __init__(self, process: "subprocess.Popen[bytes]", read: int, write: int) -> None:
        self._process, self._write = process, write
        self._answers: dict[int, queue.Queue[dict[str, Any]]] = {}
        self._number, self._session = 0, ""
        self.events: list[dict[str, Any]] = []
        threading.Thread(target=self._listen, args=(read,), daemon=True).start()
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def _listen(self, read: int) -> None:
        with os.fdopen(read, "rb") as stream:
            rest = b""
            while part := stream.read1(2**16):
                *messages, rest = (rest + part).split(b"\0")
                for message in map(json.loads, messages):
                    if "id" in message:
                        self._answers[message["id"]].put(message)
                    else:
                        self.events.append(message)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.result(method, self.post(method, **parameters))

    def post(self, method: str, **parameters: Any) -> "queue.Queue[dict[str, Any]]":
        """Send a command without waiting for its result."""
        self._number += 1
        number, answers = self._number, queue.Queue[dict[str, Any]]()
        self._answers[number] = answers
        message: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        return answers

    @staticmethod
    def result(method: str, answers: "queue.Queue[dict[str, Any]]") -> dict[str, Any]:
        answer = answers.get(timeout=DEADLINE)
        assert "error" not in answer, (method, answer)
        result: dict[str, Any] = answer["result"]
        return result

    def show(self, width: int, height: int, scheme: str = "light", *, still: bool = True) -> None:
        """Set the window's size and the user's preferences."""
        phone = width < 500
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)
        motion = "reduce" if still else "no-preference"
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        wanted = [{"name": name, "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", features=wanted)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page, awaited."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, script: str, seconds: float = DEADLINE) -> None:
        """Wait until an expression is true."""
        wait_until(lambda: bool(self.run(script)), script, seconds)

    def text(self, selector: str) -> str:
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def drag(self, selector: str, line: list[tuple[float, float]]) -> None:
        """Press the mouse at the first point, in shares of an element, and lift it at the last."""
        script = f"(b => [b.x, b.y, b.width, b.height])({self.box(selector)})"
        left, top, width, height = self.run(script)
        answers = []
        for number, (x, y) in enumerate([line[0], *line, line[-1]]):
            kind = "mousePressed" if number == 0 else "mouseMoved"
            kind = "mouseReleased" if number == len(line) + 1 else kind
            more = {"button": "left", "buttons": 1, "clickCount": 1}
            place = {"x": left + x * width, "y": top + y * height}
            answers.append(self.post("Input.dispatchMouseEvent", type=kind, **place, **more))
        for answer in answers:
            self.result("Input.dispatchMouseEvent", answer)

    def click(self, selector: str) -> None:
        self.drag(selector, [(0.5, 0.5)])

    @staticmethod
    def box(selector: str) -> str:
        return f"document.querySelector({json.dumps(selector)}).getBoundingClientRect()"

    def key(self, name: str, code: int, text: str = "") -> None:
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent",
                **{"type": kind, "key": name, "windowsVirtualKeyCode": code, **more},
            )

    def screenshot(self, file: Path, *, whole: bool = False) -> bytes:
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        content = base64.b64decode(answer["data"])
        file.write_bytes(content)
        return content

    def hide(self) -> str:
        """Put another tab in front of this one; return its name."""
        own, self._session = self._session, ""
        other = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.send("Target.activateTarget", targetId=other)
        self._session = own
        return str(other)

    def close(self, other: str) -> None:
        """Close another tab, and come back to this one."""
        own, self._session = self._session, ""
        self.send("Target.closeTarget", targetId=other)
        self._session = own
        self.send("Page.bringToFront")

    def complaints(self) -> list[str]:
        """The errors and warnings on the console, and the exceptions."""
        found = []
        for event in list(self.events):
            name, about = event["method"], event["params"]
            if name == "Runtime.exceptionThrown":
                found.append(str(about["exceptionDetails"]))
            if name == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning"):
                found.append(str(about["args"]))
            if name == "Log.entryAdded" and about["entry"]["level"] in ("error", "warning"):
                found.append(str(about["entry"]))
        return found

    def requested(self) -> list[str]:
        """The addresses that the page has requested."""
        sent = [each for each in list(self.events) if each["method"] == "Network.requestWillBeSent"]
        return [str(each["params"]["request"]["url"]) for each in sent]


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A tab of a browser of its own, which is gone afterwards."""
    program = find()
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    def place() -> None:  # The two that Chromium reads and writes are 3 and 4.
        first, second = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(first, 3)
        os.dup2(second, 4)

    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *OPTIONS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
            env={**os.environ, "HOME": str(folder)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=place,
            pass_fds=(3, 4),
        )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        page = Page(process, ours_in, ours_out)
        yield page
        page._session = ""
        page.send("Browser.close")
    finally:
        deadline = time.monotonic() + DEADLINE
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
        process.wait(DEADLINE)
        os.close(ours_out)
