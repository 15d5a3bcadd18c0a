"""Build the documentation site with Zensical.

    python docs/build_site.py [--out build]     pages into build/pages, the site into build/site

The pages are written for readers of the repository, whose links may leave docs/. Before Zensical
builds them, they are laid out in a folder of their own: a linked file outside of docs/ becomes a
page below repository/, a notebook becomes a page, and every heading gets the anchor that GitHub
gives it. A link to a file that does not exist, and every warning of Zensical, is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "zensical.toml"
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yaml": "yaml", ".sh": "bash"}
PICTURES = (".png", ".svg")
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
HEADING = re.compile(r"^(#{1,6}) (.+)$", re.MULTILINE)


def site_path(file: str) -> str:
    """Where a file of the repository stands among the pages of the site.

    >>> site_path("docs/api/README.md"), site_path("SECURITY.md"), site_path("README.md")
    ('api/index.md', 'repository/SECURITY.md', 'index.md')
    >>> site_path("reproduce/README.md"), site_path("reproduce/methods")
    ('repository/reproduce.md', 'repository/reproduce/methods.md')
    >>> site_path("examples/own_method.py"), site_path("docs/notebooks/first-steps.ipynb")
    ('repository/examples/own_method.py.md', 'notebooks/first-steps.md')
    """
    if file == "README.md":
        return "index.md"
    is_page = file.startswith("docs/") and file.endswith((".md", ".ipynb", *PICTURES))
    path = file.removeprefix("docs/") if is_page else f"repository/{file}"
    readme = "/index.md" if is_page else ".md"
    for ending, other in (("/README.md", readme), (".ipynb", ".md")):
        if path.endswith(ending):
            return path.removesuffix(ending) + other
    return path if path.endswith((".md", *PICTURES)) else f"{path}.md"


class Pages:
    """The pages of the site, found by following links from docs/ and README.md."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[str, bytes] = {}

    def add(self, file: str) -> None:
        """One file of the repository, and all that it links to."""
        path, source = site_path(file), self.root / file
        if path in self.contents:
            return
        self.contents[path] = b""  # pages may link to each other
        if source.is_dir():
            text = self._folder(file)
        elif source.suffix in PICTURES:
            self.contents[path] = source.read_bytes()
            return
        elif source.suffix == ".md":
            text = self._linked(source.read_text("utf-8"), file)
        elif source.suffix == ".ipynb":
            text = self._linked(notebook(source), file)
        else:
            language = LANGUAGES.get(source.suffix, "text")
            text = f"# {file}\n\n````{language}\n{source.read_text('utf-8')}\n````\n"
        self.contents[path] = with_anchors(text).encode()

    def _linked(self, text: str, file: str) -> str:
        """The text with links to where their files stand on the site."""

        def moved(link: re.Match[str]) -> str:
            target, mark, anchor = link[2].partition("#")
            if "://" in target or target.startswith("mailto:") or not target:
                return link[0]
            linked = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
            if (self.root / linked / "README.md").exists():
                linked = f"{linked}/README.md"
            if not (self.root / linked).exists():
                raise SystemExit(f"{file} links to {linked}, which does not exist")
            self.add(linked)
            here = posixpath.dirname(site_path(file)) or "."
            path = posixpath.relpath(site_path(linked), here)
            return f"{link[1]}{path}{mark}{anchor}{link[3]}"

        return outside_code(text, lambda prose: LINK.sub(moved, prose))

    def _folder(self, folder: str) -> str:
        files = sorted(path.name for path in (self.root / folder).iterdir())
        lines = [f"- `{name}`" for name in files if not name.startswith((".", "__"))]
        return "\n".join([f"# {folder}", "", "A folder of the repository:", "", *lines, ""])


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a text everywhere but in its blocks of code."""
    parts, end = [], 0
    for block in FENCED.finditer(text):
        parts += [change(text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, change(text[end:])])


def anchor_of(heading: str) -> str:
    """What GitHub calls a heading.

    >>> anchor_of("### `s`: a `Site`, one client"), anchor_of("## Who wins?")
    ('s-a-site-one-client', 'who-wins')
    """
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading.lstrip("#").strip())
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def with_anchors(text: str) -> str:
    """Every heading with GitHub's anchor, numbered where that is ambiguous."""
    earlier: Counter[str] = Counter()

    def anchored(heading: re.Match[str]) -> str:
        name = anchor_of(heading[2])
        anchor = f"{name}-{earlier[name]}" if earlier[name] else name
        earlier[name] += 1
        return f"{heading[0]} {{ #{anchor} }}"

    return outside_code(text, lambda prose: HEADING.sub(anchored, prose))


def notebook(file: Path) -> str:
    """A notebook as Markdown: texts, code, and what the code printed."""
    parts = []
    for cell in json.loads(file.read_text("utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(map(printed_text, cell["outputs"])).rstrip()
        parts += [f"```text\n{printed}\n```"] if printed else []
    name = file.name
    parts.append(f"*This page is the notebook `docs/notebooks/{name}` of the repository.*")
    return "\n\n".join(parts) + "\n"


def printed_text(output: dict[str, object]) -> str:
    """An output of a cell as plain text."""
    data = output.get("data")
    lines = data.get("text/plain", "") if isinstance(data, dict) else output.get("text", "")
    return "".join(map(str, lines)) + "\n" if isinstance(lines, list | str) else ""


def lay_out(folder: Path, root: Path = ROOT) -> Pages:
    """Write all pages into a folder, which is made anew."""
    pages = Pages(root)
    pages.add("README.md")
    for suffix in ("md", "ipynb"):
        for file in sorted((root / "docs").rglob(f"*.{suffix}")):
            pages.add(file.relative_to(root).as_posix())
    shutil.rmtree(folder, ignore_errors=True)
    for path, content in pages.contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return pages


def missing(pages: Pages, config: str) -> str:
    """Pages that the navigation does not lead to, and names in it that are no page."""
    named = set(listed(tomllib.loads(config)["project"]["nav"]))
    written = {path for path in pages.contents if path.endswith(".md")}
    pages_of_docs = {path for path in written if not path.startswith("repository/")}
    complaints = [f"{path} is not in the navigation" for path in sorted(pages_of_docs - named)]
    complaints += [f"the navigation names {path}, which is no page" for path in named - written]
    return "; ".join([*complaints, "see zensical.toml"]) if complaints else ""


def listed(navigation: object) -> Iterator[str]:
    """The pages of a navigation, however deep."""
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, list):
        for entry in navigation:
            yield from listed(entry)
    elif isinstance(navigation, dict):
        for entry in navigation.values():
            yield from listed(entry)


def build(out: Path) -> None:
    """Lay the pages out and let Zensical build them; a warning is an error."""
    pages = lay_out(out / "pages")
    config = Path(shutil.copy(CONFIG, out))
    if complaint := missing(pages, config.read_text("utf-8")):
        raise SystemExit(complaint)
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(
        [*command, "--config-file", "zensical.toml"],
        cwd=out,
        env={**os.environ, "NO_COLOR": "1"},
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"Zensical ended with {done.returncode}; its warnings are above")


def main() -> None:
    parser = argparse.ArgumentParser(description="Build the documentation site.")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="folder to write into")
    build(parser.parse_args().out.resolve())


if __name__ == "__main__":
    main()
