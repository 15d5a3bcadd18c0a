"""Write docs/methods: a page for every method, term and recipe, and their list.

    python docs/build_methods.py            write the pages
    python docs/build_methods.py --check    write nothing; fail where a page is out of date

A page holds what the docstring says, the arguments, what was seen to travel, the comparison with a
published program (reproduce/parity/results) and the place in the fair table (reproduce/methods).
The list of the pages in zensical.toml, which puts them on the site, is written too.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from build_api import DOCS, cleandoc, prose, table, write

sys.path.append(str(DOCS.parent / "reproduce"))

from table_page import NOTHING, Standing, accuracy, number
from table_results import DATA, DataSet, Measured, Row, Rows, stored

from fedloom.catalogue import Entry, catalogue, parts_of
from fedloom.methods import parse_method, register

FOLDER = DOCS / "methods"
SITE = DOCS.parent / "zensical.toml"
ORIGIN = "<!-- Written by docs/build_methods.py; change the docstring or the results. -->"
PLAIN = "fedavg"
"""The method under most terms; a comparison of a term says little about it."""


@dataclass(frozen=True)
class FairTable:
    """The rows of docs/methods-table.md and what is measured of them."""

    rows: Rows
    data: list[DataSet]
    results: dict[str, dict[str, Measured]]
    standing: Standing | None

    @classmethod
    def read(cls) -> FairTable:
        rows, results = Rows.read(), {name: stored(name) for name in DATA}
        return cls(rows, list(map(DataSet.read, DATA)), results, Standing.of(rows, results))

    def with_parts(self, parts: frozenset[str]) -> list[Row]:
        """The rows in whose expression all of these parts stand, and none but FedAvg beside."""
        return [row for row in self.rows.methods.values() if is_about(row.expression, parts)]


def parts_in(expression: str) -> frozenset[str]:
    """The registered parts an expression is made of, recipes taken apart."""
    return frozenset(part.name for part in parse_method(expression).parts)


def parts_of_name(name: str) -> frozenset[str]:
    """The same of one name; a term alone is one part, a recipe may be several."""
    return frozenset(part.name for part in parts_of(name))


def is_about(expression: str, parts: frozenset[str]) -> bool:
    """Whether an expression is these parts, alone or on FedAvg."""
    return parts_in(expression) - {PLAIN} == parts - {PLAIN}


# ------------------------------------------------------------------ the sections of a page


def arguments(name: str) -> str:
    """What an expression may write, the defaults, and what is tuned."""
    ranges = {key: where for part in parts_of(name) for key, where in part.tunable.items()}
    rows = [
        (f"`{p.name}`", f"`{p.default!r}`", f"{ranges[p.name]}" if p.name in ranges else "")
        for p in inspect.signature(register[name]).parameters.values()
        if p.name not in {"opt", "server", "terms"} and p.default is not p.empty
    ]
    if not rows:
        return "No arguments of its own."
    return table(rows, "argument", "default", "`fedloom tune` searches")


def facts(entry: Entry) -> str:
    rows = [
        ("a client sends", entry["travels up"]),
        ("a client receives", entry["comes down"]),
        ("a client keeps", entry["stays"]),
        ("cost of a round beside FedAvg", entry["cost"]),
    ]
    seen = "Seen in a run on a tiny federation; K classes, d features, N clients."
    return f"{seen}\n\n{table(rows, 'what', 'of this ' + entry['is a'])}"


def parity(name: str) -> str:
    """The comparisons with published programs in which this name is what is compared."""
    parts = parts_of_name(name)
    mine, beside = [], []
    for file in sorted((DOCS.parent / "reproduce" / "parity" / "results").glob("*.json")):
        result = json.loads(file.read_text("utf-8"))
        if is_about(result["expression"], parts):
            mine.append(result)
        elif parts <= parts_in(result["expression"]):
            beside.append(result["method"])
    paragraphs = [compared(result) for result in mine]
    if not mine:
        paragraphs = ["Not compared by itself with a published program."]
    if beside:
        links = ", ".join(f"[{method}](../parity.md#{method})" for method in beside)
        paragraphs.append(f"It is a part of these comparisons: {links}.")
    return "\n\n".join(paragraphs)


def compared(result: dict[str, Any]) -> str:
    method, repository, commit = result["method"], result["repository"], result["commit"]
    deviations = "; ".join(d["what"] for d in result["deviations"]) or "nothing"
    return (
        f"`{result['expression']}` and the program"
        f" [{repository}@{commit[:7]}](https://github.com/{repository}/tree/{commit}) differ by at"
        f" most {result['largest']:.0e} in any tensor after {len(result['cohorts'])} rounds."
        f" Paper and program part in: {deviations} ([details](../parity.md#{method}))."
    )


def place(name: str, fair: FairTable) -> str:
    """The rows of the fair table that are this method."""
    rows = fair.with_parts(parts_of_name(name))
    if not rows:
        return "No row of [the fair table](../methods-table.md) is this alone."
    lines = []
    for row in rows:
        rank = NOTHING if fair.standing is None else fair.standing.mean_rank.get(row.name)
        cells = [accuracy(fair.results[data.name].get(row.name)) for data in fair.data]
        shown = rank if isinstance(rank, str) else number(rank, 1)
        lines.append((row.name, f"`{row.expression}`", shown, *cells))
    measured = any(cell != NOTHING for line in lines for cell in line[3:])
    about = (
        "Accuracy in percent after the same tuning effort for every method, and the mean rank over"
        " the data sets that are measured whole; a dash is not measured yet."
        if measured
        else "Not measured yet."
    )
    heads = ("row", "expression", "mean rank", *(data.short for data in fair.data))
    rows_of = "These rows of [the fair table](../methods-table.md) are this method:"
    return f"{about} {rows_of}\n\n{table(lines, *heads)}"


def page(entry: Entry, fair: FairTable) -> str:
    name = entry["name"]
    parts = [
        f"# {name}",
        ORIGIN,
        f"*A {entry['is a']} of the family: {entry['family']}.* Use it as"
        f" `{used_as(entry)}`; `fedloom show {name}` prints this page's beginning.",
        prose(cleandoc(register[name].__doc__ or "")),
        "## Arguments",
        arguments(name),
        "## What travels, and what it costs",
        facts(entry),
        "## Parity with a published program",
        parity(name),
        "## Place in the fair table",
        place(name, fair),
    ]
    return "\n\n".join(parts) + "\n"


def used_as(entry: Entry) -> str:
    """An expression with this name in it."""
    name = entry["name"]
    goes_on_a_method = entry["is a"] == "term" or isinstance(register[name](), tuple)
    return f"{PLAIN} + {name}" if goes_on_a_method else name


# ------------------------------------------------------------------ all pages


def index(families: dict[str, list[Entry]]) -> str:
    parts = [
        "# Methods, one by one",
        ORIGIN,
        "An expression is one method plus any terms, as in `scaffold + dbe`; a recipe is a name"
        " for an expression, or for terms that belong together. How close each is to a published"
        " program: [parity](../parity.md). How good each is after the same tuning effort:"
        " [the fair table](../methods-table.md).",
    ]
    for family, entries in families.items():
        rows = [(f"[{e['name']}]({e['name']}.md)", e["is a"], e["what it does"]) for e in entries]
        parts += [f"## {capitalised(family)}", table(rows, "name", "is a", "what it does")]
    return "\n\n".join(parts) + "\n"


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def navigation(families: dict[str, list[Entry]]) -> str:
    """zensical.toml with the pages of every family between its marks."""
    begin, end = "# Written by docs/build_methods.py:\n", "    # End of what it writes.\n"
    lines = ""
    for family, entries in families.items():
        pages = ", ".join(f'"methods/{entry["name"]}.md"' for entry in entries)
        lines += f'    {{ "{capitalised(family)}" = [{pages}] }},\n'
    before, _, rest = SITE.read_text("utf-8").partition(begin)
    return f"{before}{begin}{lines}{end}{rest.partition(end)[2]}"


def main() -> None:
    """Write every page, or say which is out of date."""
    fair = FairTable.read()
    families: dict[str, list[Entry]] = defaultdict(list)
    for entry in catalogue("methods"):
        families[entry["family"]].append(entry)
    families = dict(sorted(families.items()))
    pages = {FOLDER / "README.md": index(families), SITE: navigation(families)}
    for entry in [entry for entries in families.values() for entry in entries]:
        pages[FOLDER / f"{entry['name']}.md"] = page(entry, fair)
    write(pages, FOLDER, "python docs/build_methods.py")


if __name__ == "__main__":
    main()
