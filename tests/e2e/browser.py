"""A real Chromium for tests, and what every page must satisfy in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def chromium() -> Iterator[Browser]:
    """The system's browser, headless; HEARTH_CHROMIUM names another one."""
    path = next(filter(None, (os.environ.get("HEARTH_CHROMIUM"), *map(shutil.which, NAMES))), None)
    assert path is not None, "tools/chromium.sh installs the browser"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page whose console is read: a policy violation or a script error fails the test at once."""

    def __init__(self, page: Page, address: str, pictures: Path) -> None:
        self.page, self.address, self.pictures = page, address, pictures
        self.complaints: list[str] = []
        page.set_default_timeout(60_000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.type}: {message.text}")

    def open(self, path: str) -> None:
        response = self.page.goto(self.address + path)
        assert response is not None and response.ok, f"{path}: {response and response.status}"
        self.ready()

    def ready(self) -> None:
        """Wait until the page listens to keys and clicks; the sign-in page has no script."""
        if "/login" not in self.page.url:
            self.page.wait_for_selector("html[data-ready]")

    def check(self, name: str) -> None:
        """No complaint, no accessibility violation, no sideways scrolling; leaves a picture."""
        self.page.screenshot(path=self.pictures / f"{name}.png", full_page=True)
        assert self.complaints == [], name
        violations: list[dict[str, Any]] = Axe().run(self.page).response["violations"]
        found = [(rule["id"], [node["html"][:160] for node in rule["nodes"][:3]]) for rule in violations]
        assert found == [], name
        wide = self.page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth")
        assert not wide, f"{name} scrolls sideways"
