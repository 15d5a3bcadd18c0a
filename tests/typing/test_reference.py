"""The API reference and the guide say what the sources say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import fedloom as fl
from fedloom.core.hooks import hooks

ROOT = Path(__file__).parents[2]


def test_the_reference_is_up_to_date() -> None:
    """If not: python docs/build_api.py."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "build_api.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_every_public_name_has_a_docstring_in_the_reference() -> None:
    index = (ROOT / "docs" / "api" / "README.md").read_text(encoding="utf-8")
    described = dict(re.findall(r"^\| \[`(\w+)`\]\(\S+\) \| (.*) \|$", index, re.MULTILINE))
    packages = {"analysis", "data", "diagnose", "loggers", "models", "testing", "__version__"}
    assert [name for name in dir(fl) if name not in packages and not described.get(name)] == []


def test_links_of_the_reference_lead_to_headings() -> None:
    folder = ROOT / "docs" / "api"
    index = (folder / "README.md").read_text(encoding="utf-8")
    headings = {
        page.name: [line[3:] for line in page.read_text().splitlines() if line.startswith("## ")]
        for page in folder.glob("*.md")
    }
    for name, page, anchor in re.findall(r"\[`(\w+)`\]\(([\w-]+\.md)#([\w-]+)\)", index):
        assert name in headings[page]
        word, _, number = anchor.partition("-")
        alike = [heading for heading in headings[page] if heading.lower() == word]
        assert alike[int(number or 0)] == name


def test_the_guide_names_every_hook() -> None:
    guide = (ROOT / "docs" / "add-a-method.md").read_text(encoding="utf-8")
    inner = {"overrides", "parts"}  # called by the core, never overridden
    missing = [hook for hook in hooks(fl.Method._frames()) - inner if f"`{hook}" not in guide]
    assert missing == []
