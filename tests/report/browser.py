"""Debian's Chromium, driven by playwright, for pages that must work by hand."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

ARGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser without a window; the test is skipped where there is none."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("chromium is not installed (apt install chromium)")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(ARGS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, address: str, **options: Any) -> Iterator[Any]:
    """A page; whatever it complains about on the console, or throws, fails the test."""
    complaints: list[str] = []
    page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
    page.set_default_timeout(300_000)
    page.on("console", lambda m: complaints.append(f"{m.type}: {m.text}"))
    page.on("pageerror", lambda e: complaints.append(f"error: {e}"))
    page.on("request", lambda r: _only(address, r.url, complaints))
    page.goto(address)
    try:
        yield page
    finally:
        page.close()
    assert complaints == []


def _only(address: str, requested: str, complaints: list[str]) -> None:
    if not requested.startswith(address.split("#", maxsplit=1)[0]):
        complaints.append(f"asked for {requested}")
