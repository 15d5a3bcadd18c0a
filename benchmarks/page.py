"""Put what was measured into docs/performance.md: `python benchmarks/page.py`.

The page has marked places; the text around them is written by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"


def read(name: str) -> dict:
    """A result file."""
    return json.loads((HERE / "results" / f"{name}.json").read_text())


def rows(head: list[str], body: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def speed() -> str:
    """Duels with the bare loop and with peers."""
    found = read("speed")
    body = []
    for r in found["duels"].values():
        low, high = r["spread"]
        equal = {True: "yes", False: "**no**", None: ""}[r.get("same_bytes")]
        body.append(
            [
                r["title"],
                f"{r['rival_seconds']:.2f}",
                f"{r['fedloom_seconds']:.2f}",
                f"{r['ratio']:.2f} ({low:.2f} to {high:.2f})",
                f"{r['at_least']:.2f}",
                "yes" if r["reached"] else "**no**",
                equal,
            ]
        )
    table = rows(
        ["work", "rival, s a round", "fedloom", "ratio", "at least", "reached", "same bytes"], body
    )
    if "help" not in found:
        return table
    seconds = found["help"]["seconds"]
    return f"{table}\n\n`fedloom --help` takes {seconds:.2f} s (to reach: under 0.5 s)."


def tricks() -> str:
    """What helped and what did not."""
    body = [
        [t["what"], f"{t['speed_up']:.2f} ({t['spread'][0]:.2f} to {t['spread'][1]:.2f})"]
        for t in read("tricks")["tricks"].values()
    ]
    return rows(["trick", "times as fast as without (spread)"], body)


def scale() -> str:
    """Readings and fits over the population and over the participants."""
    found = read("scale")
    parts = []
    for group, x in (("population", "clients"), ("participants", "cohort")):
        body = [
            [
                r["method"],
                r["engine"],
                f"{r['clients']:,}",
                f"{r['cohort']:,}",
                f"{r['setup_seconds']:.1f}",
                f"{r['seconds_per_round']:.3f}",
                f"{r['peak_MB']:.0f}",
            ]
            for r in found[group]["readings"]
        ]
        head = ["method", "engine", "clients", "a round", "set-up s", "s a round", "peak MB"]
        parts.append(rows(head, body))
        parts.append(_fits(found[group]["fits"], x))
    r = found["cifar10"]["readings"][0]
    parts.append(
        f"CIFAR-10, FedPAC, {r['clients']:,} clients of 50 rows, {r['cohort']} a round, two"
        f" workers: {r['seconds_per_round']:.2f} s a round, peak {r['peak_MB']:.0f} MB."
    )
    body = [
        [str(r["cohort"]), *(f"{r[k]:.3f}" for k in ("seconds", "aggregate_seconds"))]
        for r in found["fedpac_server"]["readings"]
    ]
    parts.append(rows(["FedPAC's participants", "server's round, s", "of it aggregation, s"], body))
    return "\n\n".join(parts)


def _fits(lines: list[dict], x: str) -> str:
    kept = [f for f in lines if f["fit"].startswith(("seconds_per_round", "peak_MB"))]
    said = [
        f"- {f['of']}: {f['fit'].split(' = ')[0].replace('_', ' ')} ="
        f" {f['a']:.4g} + {f['b']:.3g} x {x} (off by {100 * f['worst_gap']:.0f} % at most)"
        for f in kept
    ]
    return "\n".join(said)


PLACES = {"speed": speed, "tricks": tricks, "scale": scale}


def filled(text: str) -> str:
    """The page with every marked place as measured."""
    for name, make in PLACES.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        if not re.search(pattern, text, re.DOTALL):
            raise SystemExit(f"{PAGE} has no place for {name}")
        made = make()
        text = re.sub(pattern, lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text, flags=re.DOTALL)
    return text


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(filled(PAGE.read_text()))


if __name__ == "__main__":
    main()
