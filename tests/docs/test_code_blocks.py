"""Every block of code in README and docs runs, or says why it does not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.append(str(HERE))

from blocks import blocks  # noqa: E402

ELSEWHERE = {
    "docs/deploy.md": "tests/deploy plays these commands with real processes",
    "docs/policy.md": "tests/policy plays runs under rules; these need the data of a site",
    "docs/operations.md": "tests/deploy and tests/unit/test_operations_files.py do; needs sites",
}
"""Pages whose commands need a site or several machines, and what tests them."""
PAGES = sorted(
    page.relative_to(ROOT).as_posix() for page in [ROOT / "README.md", *ROOT.glob("docs/*.md")]
)
"""Pages below docs/api and docs/methods show examples of docstrings, which pytest runs there."""
WITH_CODE = [
    page
    for page in PAGES
    if page not in ELSEWHERE
    and any(
        block.language in {"python", "bash"} and not block.reason
        for block in blocks((ROOT / page).read_text("utf-8"))
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_CODE)
def test_the_blocks_of_a_page_run(page: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, HERE / "blocks.py", ROOT / page],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "FEDLOOM_CACHE": str(tmp_path / ".cache")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_what_it_is(page: str) -> None:
    """A block of commands without a language would never be run."""
    for block in blocks((ROOT / page).read_text("utf-8")):
        first = block.code.split(maxsplit=1)[:1]
        is_command = first in (["fedloom"], ["$"], ["import"], ["python"])
        assert block.language in {"python", "bash"} or not is_command, f"{page}:{block.line}"


def test_examples_of_generated_pages_are_docstrings() -> None:
    for page in [*ROOT.glob("docs/api/*.md"), *ROOT.glob("docs/methods/*.md")]:
        assert "Written by docs/build_" in page.read_text("utf-8"), page
