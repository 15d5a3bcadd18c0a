"""The picture of a report that README shows, taken by Chromium without a window.

    make demo && python docs/pictures/screenshot.py runs/demo/report.html

Writes docs/pictures/report.png with few colours, so that it stays small.
"""

from __future__ import annotations

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PICTURE = Path(__file__).with_name("report.png")
VIEW = {"width": 1100, "height": 900}
COLOURS = 64


def take(report: Path, picture: Path = PICTURE) -> None:
    """The top of the page, in light colours."""
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("chromium is not installed (apt install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(viewport=VIEW, color_scheme="light")
        page.goto(report.resolve().as_uri())
        pixels = page.screenshot()
        browser.close()
    image = Image.open(io.BytesIO(pixels)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(picture, optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]))
