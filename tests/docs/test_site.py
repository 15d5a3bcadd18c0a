"""The site: every page is reached, every link leads somewhere, and Zensical has nothing to say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))

import build_site  # noqa: E402


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Two pages, a file beside them, and no more."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Home\n\n[one](docs/one.md#a-b) [law](LICENSE)\n")
    (tmp_path / "docs" / "one.md").write_text("# One\n\n## A, b!\n\n## A b\n\n[up](../README.md)\n")
    (tmp_path / "LICENSE").write_text("do what you want")
    return tmp_path


def laid_out(repository: Path) -> dict[str, str]:
    pages = build_site.lay_out(repository / "pages", repository)
    return {path: content.decode() for path, content in pages.contents.items()}


def test_links_lead_to_where_pages_stand_on_the_site(repository: Path) -> None:
    pages = laid_out(repository)
    assert set(pages) == {"index.md", "one.md", "repository/LICENSE.md"}
    assert "[one](one.md#a-b) [law](repository/LICENSE.md)" in pages["index.md"]
    assert "[up](index.md)" in pages["one.md"]


def test_headings_have_the_anchors_of_github(repository: Path) -> None:
    page = laid_out(repository)["one.md"]
    assert "## A, b! { #a-b }" in page
    assert "## A b { #a-b-1 }" in page


def test_code_stays_as_it_is(repository: Path) -> None:
    code = "```text\n# no heading\n[no](link.md)\n```"
    (repository / "docs" / "one.md").write_text(f"# One\n\n{code}\n")
    assert code in laid_out(repository)["one.md"]


def test_a_link_to_nothing_is_refused(repository: Path) -> None:
    (repository / "docs" / "one.md").write_text("# One\n\n[gone](gone.md)\n")
    with pytest.raises(SystemExit, match=r"docs/one\.md links to docs/gone\.md"):
        laid_out(repository)


def test_navigation_and_pages_are_compared(repository: Path) -> None:
    pages = build_site.lay_out(repository / "pages", repository)
    config = '[project]\nnav = ["index.md", { "More" = [{ "Two" = "two.md" }] }]'
    complaint = build_site.missing(pages, config)
    assert "one.md is not in the navigation" in complaint
    assert "the navigation names two.md, which is no page" in complaint


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    """With every page of docs/ in the navigation of zensical.toml."""
    pytest.importorskip("zensical")
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "build_site.py", "--out", tmp_path],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    home = (tmp_path / "site" / "index.html").read_text("utf-8")
    assert "fonts.googleapis" not in home


@pytest.mark.slow
def test_a_broken_anchor_is_a_warning(tmp_path: Path) -> None:
    """Of Zensical, on which the test above relies."""
    pytest.importorskip("zensical")
    (tmp_path / "pages").mkdir()
    (tmp_path / "pages" / "index.md").write_text("# Home\n\n[x](#nowhere)\n")
    (tmp_path / "zensical.toml").write_text('[project]\nsite_name = "x"\ndocs_dir = "pages"\n')
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode != 0
    assert "anchor does not exist" in done.stdout + done.stderr


@pytest.mark.slow
def test_pages_of_methods_are_up_to_date() -> None:
    """If not: python docs/build_methods.py."""
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "build_methods.py", "--check"],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_picture_is_small() -> None:
    assert (ROOT / "docs" / "pictures" / "report.png").stat().st_size < 150_000
