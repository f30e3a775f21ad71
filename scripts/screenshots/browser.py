"""Dagster's page in a headless Chromium: go somewhere, see that something is there, take its picture."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from playwright.sync_api import Locator, expect, sync_playwright
from playwright.sync_api import Page as _Page

__all__ = ["Browser", "browser", "chromium"]

_SECONDS = 60
_MAX_BYTES = 250_000
_FLAGS = [
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
]
# Chromium's own sandbox does not start for root.
_AS_ROOT = ["--no-sandbox"]
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_LOADING = re.compile(r"^\s*Loading")
# The one that stands for a page; those in the labels of runs under way are smaller.
_SPINNER = '[role=progressbar] svg[width="80"]'


def chromium() -> str | None:
    """The Chromium that is installed: what ``CHROMIUM`` names, or one on the PATH."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def browser(url: str, pictures: Path, *, width: int = 1400, height: int = 900) -> Iterator[Browser]:
    """Dagster at ``url``; pictures go to the folder ``pictures``. The browser's profile is deleted at the end."""
    with sync_playwright() as playwright:
        flags = _FLAGS + (_AS_ROOT if os.geteuid() == 0 else [])
        started = playwright.chromium.launch(executable_path=chromium(), args=flags)
        try:
            page = started.new_page(
                base_url=url, viewport={"width": width, "height": height}, timezone_id="UTC", locale="en-US"
            )
            page.set_default_timeout(_SECONDS * 1000)
            expect.set_options(timeout=_SECONDS * 1000)
            page.goto("/runs")
            page.get_by_text("Hide navigation").click()
            yield Browser(page, pictures)
        finally:
            started.close()


class Browser:
    """What the pictures need of Playwright; ``page`` is there for the rest. Whatever does not turn up within a minute
    is an error.
    """

    def __init__(self, page: _Page, pictures: Path) -> None:
        self.page = page
        self.pictures = pictures

    def open(self, path: str) -> None:
        self.page.goto(path, wait_until="networkidle")

    def see(self, *texts: str, inside: Locator | None = None, seconds: float = _SECONDS) -> None:
        """Wait until each of these texts is in sight."""
        for text in texts:
            found = (inside or self.page).get_by_text(text).filter(visible=True)
            expect(found.first).to_be_visible(timeout=seconds * 1000)

    def count(self, text: str, times: int, *, seconds: float = _SECONDS) -> None:
        """Wait until this text is in sight so many times."""
        expect(self.page.get_by_text(text, exact=True).filter(visible=True)).to_have_count(
            times, timeout=seconds * 1000
        )

    def click(self, name: str, *, role: Literal["button", "tab"] = "button", inside: Locator | None = None) -> None:
        (inside or self.page).get_by_role(role, name=name).first.click()

    def follow(self, path: str) -> None:
        """Click the link to this path of Dagster's page."""
        self.page.locator(f'a[href="{path}"]').filter(visible=True).first.click()

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """With the mouse, from one place on the page to another (x, y)."""
        mouse = self.page.mouse
        mouse.move(*start)
        mouse.down()
        mouse.move(*end, steps=5)
        mouse.up()

    def scroll_to(self, text: str) -> None:
        """Bring it to the top of the part of the page that scrolls."""
        self.page.get_by_text(text, exact=True).first.evaluate("element => element.scrollIntoView({block: 'start'})")

    def shoot(self, name: str) -> Path:
        """The page as ``NAME.png``, when nothing is loading any more, and as ``dark/NAME.png`` in the dark theme.
        Raises RuntimeError for a picture too big to keep in a repository.
        """
        self.page.mouse.move(0, 0)
        expect(self.page.get_by_text(_LOADING).filter(visible=True)).to_have_count(0)
        expect(self.page.locator(_SPINNER)).to_have_count(0)
        self.page.wait_for_load_state("networkidle")
        self.page.evaluate("document.fonts.ready.then(() => true)")
        light, dark = self.pictures / f"{name}.png", self.pictures / "dark" / f"{name}.png"
        self._shoot(dark, "dark")
        self._shoot(light, "light")
        return light

    def _shoot(self, path: Path, theme: Literal["light", "dark"]) -> None:
        # Dagster follows the system's theme, and changes it without loading anything.
        self.page.emulate_media(color_scheme=theme)
        self.page.wait_for_timeout(800)  # charts and the graph are drawn in steps that nothing announces
        self.page.screenshot(path=path, animations="disabled", caret="hide")
        if path.stat().st_size > _MAX_BYTES:
            raise RuntimeError(f"{path} has {path.stat().st_size:,} bytes: show less, or a smaller page")
