"""Write docs/parity.md from what was measured: `python reproduce/parity/page.py`."""

from __future__ import annotations

import json
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "parity.md"

INTRODUCTION = """\
# Parity with the authors' programs

Written by `python reproduce/parity/page.py` from `reproduce/parity/results/`; do not edit it here.

Every row compares fedloom with a published program: the one of the method's authors, or, for
FedProx and SCAFFOLD (FedNTD's authors), Fed-RoD (FedETF's), Per-FedAvg (pFedMe's), FedPer and
LG-FedAvg (FedRep's), one of other authors that has the method. Both begin with the
same weights and train the same rows in the same batches on a small network, for three rounds with
all clients and, where it is cheap, one with some of them. Compared are all tensors after every
round: the server's model, what the clients keep, statistics, prototypes and aggregation weights. A
difference is the largest one in a tensor, divided by the tensor's largest number where that is
above 1. Where paper and program disagree, fedloom's default is as a rule the paper's reading, and
the comparison sets the flag of the other one. Where fedloom has no such flag, the program is driven
by the paper's reading instead, or the step is left out on both sides and so not compared. The
sections below the table tell which. A patch is what had to be changed in the authors' program to
run it here.

Some comparisons had their settings changed after a first one: with batches of 5 rows FedDecorr
differed by 1.6e-4 in the third round (by 1e-7 before it), VHL by 1.4e-5 at another rate, FedBN by
2.4e-6 with a batch of two rows, and DualFed was given larger layers and batches. In double
precision (`--double`, which writes nothing) FedDecorr's comparison ends at 8e-16 and VHL's at
1e-12, so theirs was rounding, magnified by small batches. FedBN's comparison does not run in double
precision, and DualFed's ends at 2e-5 there: what is left of it is not rounding alone, and only in
part the 1e-6 that the program adds to a divisor, as far as we know.

So parity says that fedloom computes what the program computes, under the expression in the row. It
says nothing about accuracy, nor about data, networks and tests of the paper, which are not
compared; for these see [reproduction.md](reproduction.md).

    python reproduce/parity/run.py fedpac --official PATH   # PATH: a checkout of the repository

The authors' tensors are committed in `reproduce/parity/reference/`, and
`tests/parity/test_parity.py` checks fedloom against them without the authors' code, and that other
readings and hyper-parameters do not agree. The tensors belong to fedloom's order of batches:
whoever changes that order, or another draw, runs the comparisons again. Nothing of the authors'
code is in this repository. What a comparison consists of: `reproduce/parity/harness.py`.
"""


def page() -> str:
    """The whole page."""
    results = [json.loads(p.read_text("utf-8")) for p in sorted((HERE / "results").glob("*.json"))]
    head = ["method", "program", "our expression", "largest difference", "deviations", "patches"]
    lines = [head, ["---"] * len(head), *map(row, results)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([INTRODUCTION, table, *map(section, results)])


def row(result: dict) -> list[str]:
    """One method in the table."""
    repository, commit = result["repository"], result["commit"]
    return [
        f"[{result['method']}](#{result['method']})",
        f"[{repository}@{commit[:7]}](https://github.com/{repository}/tree/{commit})",
        f"`{result['expression']}`",
        f"{result['largest']:.0e}",
        "; ".join(d["what"] for d in result["deviations"]) or "none",
        str(len(result["patches"])),
    ]


def section(result: dict) -> str:
    """Deviations, patches and the tensors of one method."""
    lines = [f"\n## {result['method']}", ""]
    cohorts = ["all" if c == "all" else ", ".join(map(str, c)) for c in result["cohorts"]]
    lines.append(f"Clients in each round: {'; '.join(cohorts)}.")
    kinds = by_kind(result["differences"])
    lines.append(f"Tensors: {', '.join(f'{kind} {d:.0e}' for kind, d in kinds.items())}.\n")
    for d in result["deviations"]:
        lines.append(
            f"- **{d['what']}**. Paper: {d['paper']}. Program: {d['code']}."
            f" In the comparison: {d['flag']}."
        )
    lines += [f"- Patch `{name}`: {why}" for name, why in result["patches"].items()]
    return "\n".join(lines).rstrip() + "\n"


def by_kind(differences: dict[str, list[float | None]]) -> dict[str, float]:
    """The largest difference by the tensors' owner and part: server body, client head."""
    kinds: dict[str, float] = {}
    for name, by_round in differences.items():
        owner, tensor = name.split("/", 1)
        kind = f"{owner.split()[0]} {tensor.split('.')[0]}"
        kinds[kind] = max([kinds.get(kind, 0.0), *(d for d in by_round if d is not None)])
    return kinds


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
