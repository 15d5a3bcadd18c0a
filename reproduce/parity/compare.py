"""Drive fedloom and an author's program, compare them, print and store what came out."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from safetensors.torch import save_file

from fedloom.core.tree import Tree
from fedloom.errors import BadInput
from fedloom.files import write_json
from fedloom.runs.folder import current_versions
from reproduce.parity.harness import (
    LIMIT,
    REFERENCE,
    RESULTS,
    Parity,
    Table,
    differences,
    largest,
    numbered,
    play,
    quiet,
)


def compare(name: str, parity: Parity, official: Path) -> None:
    """One method; where the two disagree beyond the limit, nothing is written."""
    theirs, table = measured(parity, official)
    if largest(table) > LIMIT:
        raise BadInput(f"{name}: the difference is beyond {LIMIT:g}; nothing was written")
    save_file(numbered(theirs), REFERENCE / f"{name}.safetensors")
    write_json(RESULTS / f"{name}.json", result(name, parity, official, table))


def measured(parity: Parity, official: Path) -> tuple[list[Tree], Table]:
    """The program's tensors of every round, and how far ours are from them; printed, too."""
    if not (official / parity.folder).is_dir():
        raise BadInput(f"{official / parity.folder} is no folder; clone {parity.repository}")
    warn_of_another_commit(parity, official)
    recorded = play(parity)
    sys.path.insert(0, str(official / parity.folder))
    for patch in parity.patches:
        patch()
    with quiet():
        theirs = parity.theirs(recorded)
    table = differences(parity.ours(recorded), theirs)
    for tensor, by_round in table.items():
        print(f"{tensor:44}", *("        -" if d is None else f"{d:9.1e}" for d in by_round))
    for patch in parity.patches:
        print(f"patch {patch.__name__}: {first_line(patch)}")
    print(f"largest difference {largest(table):.1e}")
    return theirs, table


def result(name: str, parity: Parity, official: Path, table: Table) -> dict:
    """All that the page and the tests need to know of a comparison."""
    return {
        "method": name,
        "repository": parity.repository,
        "commit": parity.commit,
        "command": f"python reproduce/parity/run.py {name} --official PATH",
        "files": imported_from(official),
        "expression": parity.method,
        "cohorts": ["all" if c is None else list(c) for c in parity.cohorts],
        "patches": {patch.__name__: first_line(patch) for patch in parity.patches},
        "deviations": [vars(d) for d in parity.deviations],
        "largest": largest(table),
        "differences": table,
        "versions": current_versions(),
    }


def imported_from(official: Path) -> dict[str, str]:
    """The author's files that were used, with the beginning of their SHA-256."""
    paths = {Path(f) for m in list(sys.modules.values()) if (f := getattr(m, "__file__", None))}
    return {
        str(p.relative_to(official)): hashlib.sha256(p.read_bytes()).hexdigest()[:16]
        for p in sorted(paths)
        if p.is_relative_to(official)
    }


def first_line(patch: object) -> str:
    """What a patch does, from its docstring."""
    return (patch.__doc__ or "").split("\n")[0]


def warn_of_another_commit(parity: Parity, official: Path) -> None:
    """A comparison is of one commit; another one may disagree."""
    if not (official / ".git").exists():
        return
    command = ["git", "-C", str(official), "rev-parse", "HEAD"]
    head = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    if head != parity.commit:
        print(f"note: {official} is at {head[:12]}, the comparison is of {parity.commit[:12]}")
