"""The code blocks of a page, and how they are run: small, in one process, in an empty folder.

    python tests/docs/blocks.py docs/tune.md      runs a page's blocks in the folder one is in

Python blocks of a page share their names, from the first to the last; one that begins with a name
(`# my_network.py`) is written to that file. Of bash blocks every line is one command: `fedloom ...`
runs in this process, other programs as `RUN` says. What is not run says why above its block, for
readers of the source: `<!-- not run: needs two machines -->`.

What a page takes for granted (files, names) is prepared by `tests/docs/before/PAGE.py`. Long runs
are shortened as `SHORTER` says.
"""

from __future__ import annotations

import doctest
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

BLOCK = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# ([\w-]+\.py)\n")
REASON = re.compile(r"<!-- not run: (.+?) -->\s*$", re.DOTALL)

SHORTER = (
    (r"(--rounds |\brounds=)\d+", r"\g<1>1"),
    (r"(--epochs |\bepochs=)\d+", r"\g<1>1"),
    (r"(--trials |\btrials=)\d+", r"\g<1>2"),
    (r"(--seeds )\d+", r"\g<1>1"),
    (r"\bseeds=\[0, 1, 2\]", "seeds=[0]"),
    (r"--clients \d\d+", "--clients 4"),
    (r"--engine pool( --workers \d+)?", "--engine inline"),
)
"""What is written -> what is run: the same commands with less work."""
ROUNDS = 1
"""The default of `rounds`, for runs that leave it to the default."""


@dataclass(frozen=True)
class Block:
    """A piece of code of a page."""

    language: str
    code: str
    line: int
    reason: str | None
    """Why it is not run."""


def blocks(text: str) -> Iterator[Block]:
    """Every fenced block of a page."""
    for found in BLOCK.finditer(text):
        reason = REASON.search(text[: found.start()])
        line = text[: found.start()].count("\n") + 1
        code = re.sub(rf"^{found['indent']}", "", found["code"], flags=re.MULTILINE)
        yield Block(found["language"], code, line, reason[1] if reason else None)


def shorter(code: str) -> str:
    """The same with less work.

    >>> shorter("fedloom run --rounds 20 --epochs 5 --engine pool")
    'fedloom run --rounds 1 --epochs 1 --engine inline'
    """
    for written, run in SHORTER:
        code = re.sub(written, run, code)
    return code


# ------------------------------------------------------------------ commands


def commands(code: str) -> Iterator[list[str]]:
    """The commands of a bash block as lists of words; `a && b` is two.

    >>> list(commands("fedloom run \\\\\\n  --lr 0.1  # slowly\\nmake test && fedloom list"))
    [['fedloom', 'run', '--lr', '0.1'], ['make', 'test'], ['fedloom', 'list']]
    """
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while "&&" in words:
            yield words[: words.index("&&")]
            words = words[words.index("&&") + 1 :]
        if words:
            yield words


def run_fedloom(*words: str) -> None:
    from helpers import fedloom

    done = fedloom(*words)
    if done.code != 0:
        raise AssertionError(f"fedloom {' '.join(words)}\nended with {done.code}:\n{done.err}")


def run_python(*words: str) -> None:
    """`python FILE ...`; of `pytest FILE`, which tests/cli/test_new.py runs, the collecting."""
    subprocess.run([sys.executable, *words], check=True, timeout=600)


def make_has(*words: str) -> None:
    """Targets are run by other tests; here they only have to exist."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for target in words:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"no target {target!r}"


def installs(*words: str) -> None:
    """Nothing is installed; extras that are named must be in pyproject.toml."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for word in words:
        for extra in re.findall(r"\[([\w,]+)\]", word):
            for name in extra.split(","):
                assert name in project["optional-dependencies"], f"no extra {name!r}"


RUN: dict[str, Callable[..., None]] = {
    "fedloom": run_fedloom,
    "python": run_python,
    "pytest": partial(run_python, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only"),
    "make": make_has,
    "pip": installs,
}
"""Program -> how it is run. Others are refused: their block says why it is not run."""


# ------------------------------------------------------------------ a page


def run_page(page: Path) -> int:
    """Run all blocks of a page in this folder; the number of blocks that were run."""
    from fedloom.runs.config import RunConfig

    RunConfig.model_fields["rounds"].default = ROUNDS
    RunConfig.model_rebuild(force=True)
    names: dict[str, Any] = {"__name__": "__main__"}  # as of a script: some blocks ask
    before = HERE / "before" / f"{page.stem}.py"
    if before.exists():
        execute(before.read_text("utf-8"), str(before), names)
    count = 0
    for block in blocks(page.read_text("utf-8")):
        if block.language not in {"python", "bash"} or block.reason:
            continue
        try:
            run_block(block, page, names)
        except BaseException as error:
            error.add_note(f"in the block at line {block.line} of {page.name}")
            raise
        count += 1
    return count


def run_block(block: Block, page: Path, names: dict[str, Any]) -> None:
    if block.language == "bash":
        for program, *words in commands(shorter(block.code)):
            if program not in RUN:
                raise AssertionError(f"{program!r} is run by no rule; say why the block is not run")
            RUN[program](*words)
    elif file := FILE.match(block.code):
        Path(file[1]).write_text(block.code, "utf-8")
    elif block.code.startswith(">>>"):  # as written, for it says what is printed
        parser = doctest.DocTestParser()
        test = parser.get_doctest(block.code, names, page.name, str(page), block.line)
        results = doctest.DocTestRunner().run(test, clear_globs=False)
        names.update(test.globs)
        assert results.failed == 0, f"{results.failed} examples printed something else"
    else:
        execute(shorter(block.code), f"{page}, line {block.line}", names)


def execute(code: str, place: str, names: dict[str, Any]) -> None:
    """Run code under its own `__future__` imports, and not under those of this file."""
    exec(compile(code, place, "exec", dont_inherit=True), names)


if __name__ == "__main__":
    # Pages import the files that they write, and some the tests' helpers.
    sys.path[:0] = [str(ROOT / "tests"), ""]
    print(run_page(Path(sys.argv[1]).resolve()))
