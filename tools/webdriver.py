"""How does a test use a real browser? Chromium through its driver, by the W3C protocol that the driver speaks."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

#: How a browser is started so that it asks nothing of any network.
OPTIONS = (
    "--headless", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip


def programs() -> tuple[str, str] | None:
    """Chromium and its driver; None where one of them is missing."""
    browser = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    driver = shutil.which("chromedriver")
    return None if browser is None or driver is None else (browser, driver)


def _started(driver: str) -> tuple[subprocess.Popen[str], str]:
    """The driver, and its port. It ends where somebody else takes the free port that it chose, and is started again."""
    said = ""
    for _ in range(5):
        process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if "successfully on port " in line:
                return process, line.rsplit("port ", 1)[1].rstrip(".\n")
        process.wait()
    raise RuntimeError(f"{driver} does not start: {said}")


class Browser:
    """A browser with one window.

    Args:
        width: Width of the window in pixels.
        height: Its height.
        dark: Whether pages are asked to be dark.
    """

    def __init__(self, width: int = 1200, height: int = 900, *, dark: bool = False) -> None:
        found = programs()
        if found is None:
            raise RuntimeError("there is no Chromium with its driver: apt-get install chromium chromium-driver")
        self.folder = tempfile.TemporaryDirectory(prefix="tacit-browser-", ignore_cleanup_errors=True)
        self.driver, port = _started(found[1])
        self.base = f"http://127.0.0.1:{port}"
        own = ["--no-sandbox"] if os.geteuid() == 0 else []
        arguments = [
            *OPTIONS, *own, f"--user-data-dir={self.folder.name}/profile", f"--window-size={width},{height}",
        ]  # fmt: skip
        wanted = {
            "browserName": "chrome",
            "timeouts": {"script": 55_000},
            "goog:chromeOptions": {"binary": found[0], "args": arguments},
            "goog:loggingPrefs": {"performance": "ALL", "browser": "ALL"},
        }
        told = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self.base += f"/session/{told['sessionId']}"
        self.look(width, height, dark=dark)

    def _send(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def look(self, width: int, height: int, *, dark: bool = False) -> None:
        """A view of exactly this size (a window is never narrower than 500 pixels), asked to be light or dark."""
        self.width, self.dark = width, dark
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        for name, values in (("setDeviceMetricsOverride", size), ("setEmulatedMedia", {"features": scheme})):
            self._send("POST", "/goog/cdp/execute", {"cmd": f"Emulation.{name}", "params": values})

    def open(self, address: str) -> None:
        """Open an address and wait until it is loaded."""
        self._send("POST", "/url", {"url": address})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body returns in the page."""
        return self._send("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def wait(self, script: str, *arguments: Any, seconds: float = 30.0) -> Any:
        """Wait until a function body returns something true, and return it."""
        until = time.monotonic() + seconds
        while not (found := self.run(script, *arguments)):
            if time.monotonic() > until:
                raise TimeoutError(f"{script} stayed {found!r}; the page shows: {self.text()[:2000]}")
            time.sleep(0.05)
        return found

    def settled(self) -> None:
        """Wait until every question of a page of the studio has its answer."""
        busy = "[...document.querySelectorAll('[data-ask]')].every(x => x.getAttribute('aria-busy') === 'false')"
        self.wait(f"return {busy}", seconds=120)

    def text(self) -> str:
        """What the page shows."""
        return str(self.run("return document.body.innerText"))

    def keys(self, *keys: str) -> None:
        """Press keys where the focus is."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self._send("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def picture(self, path: Path, height: int | None = None) -> None:
        """A picture of the window; of ``height`` pixels where that is given."""
        if height is not None:
            self.look(self.width, height, dark=self.dark)
        path.write_bytes(base64.b64decode(self._send("GET", "/screenshot")))

    def log(self, kind: str) -> list[dict[str, Any]]:
        """What the browser noted since it was last asked: ``"browser"`` or ``"performance"``."""
        return list(self._send("POST", "/se/log", {"type": kind}))

    def asked(self) -> list[str]:
        """The address of every request since it was last asked."""
        found = [json.loads(entry["message"])["message"] for entry in self.log("performance")]
        return [m["params"]["request"]["url"] for m in found if m["method"] == "Network.requestWillBeSent"]

    def close(self) -> None:
        """End the browser and its driver."""
        try:
            self._send("DELETE", "")
        finally:
            self.driver.terminate()
            self.driver.wait(20)
            assert self.driver.stdout is not None
            self.driver.stdout.close()
            self.folder.cleanup()

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
