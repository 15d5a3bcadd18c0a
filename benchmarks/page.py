"""Put what was measured into the docs: `python benchmarks/page.py`.

The pages have marked places; the text around them is written by hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

HERE = Path(__file__).parent
DOCS = HERE.parent / "docs"


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
    """Readings of each group, and a line through them where there is one."""
    found = read("scale")
    parts = []
    names = {"rows": "rows", "parameters": "numbers"}
    for group in ("population", "million", "participants", "rows", "parameters"):
        if group not in found:
            continue
        body = [
            [
                r["method"],
                r["engine"],
                f"{r['clients']:,}",
                f"{r['cohort']:,}",
                *([f"{r[group]:,}"] if group in names else []),
                f"{r['setup_cpu_seconds']:.1f}",
                f"{r['cpu_seconds_per_round']:.3f}",
                f"{r['peak_MB']:.0f}",
            ]
            for r in found[group]["readings"]
        ]
        head = ["method", "engine", "clients", "a round"]
        head += [names[group]] if group in names else []
        head += ["set-up, CPU s", "a round, CPU s", "peak MB"]
        parts.append(rows(head, body))
        if lines := found[group]["fits"]:
            parts.append(_fits(lines))
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


def scale_earlier() -> str:
    """Seconds by the clock, and with the pool, from before set-ups were shortened."""
    found = read("scale_earlier")
    body = [
        [
            r["method"],
            r["engine"],
            f"{r['clients']:,}",
            f"{r['cohort']:,}",
            f"{r['seconds_per_round']:.3f}",
            f"{r['cpu_seconds_per_round']:.3f}",
            f"{r['peak_MB']:.0f}",
        ]
        for group in ("population", "participants")
        for r in found[group]["readings"]
    ]
    head = ["method", "engine", "clients", "a round", "s a round"]
    lines = [line for group in ("population", "participants") for line in found[group]["fits"]]
    by_clock = [f for f in lines if f["of"].endswith("pool") and "cohort" in f["fit"]]
    table = rows([*head, "of it CPU s of the main process", "peak MB"], body)
    return f"{table}\n\n{_fits(by_clock)}"


def _fits(lines: list[dict]) -> str:
    shown = ("setup_cpu_seconds", "cpu_seconds_per_round", "peak_MB")
    kept = [f for f in lines if f["fit"].startswith(shown)]
    said = [
        f"- {f['of']}: {f['fit'].split(' = ')[0].replace('_', ' ')} ="
        f" {f['a']:.4g} + {f['b']:.3g} x {f['fit'].split()[-1]}"
        f" (off by {100 * f['worst_gap']:.0f} % at most)"
        for f in kept
    ]
    return "\n".join(said)


def engines() -> str:
    """Engines side by side, for many small clients."""
    body = []
    for case in read("engines")["cases"]:
        for name, r in case["engines"].items():
            low, high = r["spread"]
            body.append(
                [
                    case["method"],
                    f"{case['clients']:,}",
                    name,
                    f"{r['start_seconds']:.1f}",
                    f"{r['seconds_per_round']:.3f} ({low:.3f} to {high:.3f})",
                    f"{1000 * r['seconds_per_round'] / case['clients']:.2f}",
                    f"{1000 * r['transfer_seconds'] / case['clients']:.2f}",
                    f"{r['proportional_MB']:.0f}",
                ]
            )
    head = ["method", "clients", "engine", "start s", "s a round (spread)", "ms a client"]
    return rows([*head, "of it transfer, all processes", "MB"], body)


def deployment() -> str:
    """Rounds over a real deployment, and what its processes hold."""
    found = read("deployment")
    head = ["nodes", "MB up a client", "start s", "s a round", "same messages in process, s"]
    body = [
        [
            str(r["nodes"]),
            f"{r['megabytes_up_a_client']:.2f}",
            f"{r['start_seconds']:.0f}",
            f"{r['seconds_per_round']:.1f} ({min(r['all_seconds'][1:]):.1f} to"
            f" {max(r['all_seconds'][1:]):.1f})",
            f"{inside['flower_seconds']:.2f} (inline {inside['inline_seconds']:.2f})",
        ]
        for r, inside in zip(found["deployed"], found["in_process"], strict=True)
    ]
    roles = [role for role in found["deployed"][0]["memory_MB"] if role != "other"]
    memory = [
        [
            str(r["nodes"]),
            f"{r['megabytes_up_a_client']:.2f}",
            *(f"{r['memory_MB'].get(role, 0):.0f}" for role in roles),
        ]
        for r in found["deployed"]
    ]
    titles = ["nodes", "MB up a client", *(f"{role}, MB" for role in roles)]
    return f"{rows(head, body)}\n\n{rows(titles, memory)}"


def messages() -> str:
    """Sizes of Flower's messages."""
    found = read("messages")
    head = ["method", "order MB", "of it tensors", "reply MB", "of it tensors"]
    keys = ("order_MB", "order_tensors_MB", "reply_MB", "reply_tensors_MB")
    body = [[f"`{r['method']}`", *(f"{r[k]:.2f}" for k in keys)] for r in found["methods"]]
    coding = [1000 * r["coding_seconds_per_MB"] for r in found["methods"]]
    return (
        f"{rows(head, body)}\n\nEncoding and decoding take {min(coding):.1f} to"
        f" {max(coding):.1f} ms a megabyte."
    )


def advice() -> str:
    """How long a round must be for an engine to cost less than 5 % of it."""
    lines = []
    for case in read("engines")["cases"]:
        if case["method"] == "fedavg" and case["clients"] == 1000:
            for name in ("pool", "ray"):
                r = case["engines"][name]
                each = 1000 * r["transfer_seconds"] / case["clients"]
                lines.append(
                    f"- `{name}`: {each:.2f} ms of transfer a client (small, 1,000 of them),"
                    f" so {19 * each:.0f} ms of training each."
                )
    cost = [
        (d["nodes"], d["megabytes_up_a_client"], d["seconds_per_round"] - i["inline_seconds"])
        for d, i in zip(
            read("deployment")["deployed"], read("deployment")["in_process"], strict=True
        )
    ]
    for nodes, size, seconds in cost:
        lines.append(
            f"- `fedloom deploy`, {nodes} nodes on this machine, {size:.2f} MB up a client:"
            f" {seconds:.0f} s a round beside the training, so rounds of {19 * seconds / 60:.0f}"
            " min or more."
        )
    return "\n".join(lines)


def encoder() -> str:
    """The papers' methods on a pretrained encoder, each with its rate by validation rows."""
    names = {"frozen": "frozen body", "lora": "LoRA adapters", "all": "all trained"}
    body = []
    for label, by_rate in sorted(read("encoder")["runs"].items()):
        data, way, method = label.split(" ")
        rate, r = max(by_rate.items(), key=lambda of_rate: of_rate[1]["validation"])
        body.append(
            [
                f"`{data}`",
                method,
                names[way],
                rate,
                f"{100 * r['validation']:.1f}",
                f"{100 * r['accuracy']:.1f}",
                f"{r['megabytes_of_later_rounds']:.1f}",
                f"{r['later_round_seconds']:.2f}",
            ]
        )
    head = ["data", "method", "trained", "rate", "validation, %", "accuracy, %"]
    return rows([*head, "MB a later round", "s a later round"], body)


def advised() -> str:
    """Whether advice was right, case by case."""
    draws = read("advise")["draws"]
    names = dict.fromkeys(name for draw in draws.values() for name in draw["cases"])

    def cell(draw: dict, name: str) -> str:
        r = draw["cases"].get(name)
        if r is None:
            return "-"
        return f"`{r['advised']}` ({r['kind']}){'' if r['right'] else ', **wrong**'}"

    body = []
    for name in names:
        first = next(draw["cases"][name] for draw in draws.values() if name in draw["cases"])
        kinds = ", ".join(first["right_kinds"])
        body.append([first["why"], kinds, *(cell(draw, name) for draw in draws.values())])
    table = rows(
        ["how the clients were made", "right kinds", *(f"draw {number}" for number in draws)], body
    )
    counts = ", ".join(
        f"in {draw['right']} of {draw['asked']} of draw {number}" for number, draw in draws.items()
    )
    return f"Right {counts}.\n\n{table}"


def hostile() -> str:
    """The papers' methods among hostile clients, by rule."""
    runs = read("hostile")["runs"]
    by_row: dict[tuple[str, str], dict[str, float | None]] = {}
    for label, accuracy in runs.items():
        method, case, rule = label.split(" | ")
        by_row.setdefault((case, method), {})[rule] = accuracy
    rules = list(dict.fromkeys(label.split(" | ")[2] for label in runs))

    def cell(row: dict[str, float | None], rule: str) -> str:
        value = row.get(rule)
        return ("-" if rule in row else "") if value is None else f"{100 * value:.1f}"

    ordered = sorted(by_row, key=lambda at: (at[0] != "nobody", *at))  # peace first, then by name
    body = [[*at, *(cell(by_row[at], rule) for rule in rules)] for at in ordered]
    return rows(["hostile", "method", *(f"`{rule}`" for rule in rules)], body)


def fedpac_server() -> str:
    """FedPAC's programs as they are solved now and as they were."""
    body = []
    for r in read("fedpac_server")["readings"]:
        cpu, apart = r["cpu_seconds"], r["largest_difference"]
        before = cpu.get("before")
        body.append(
            [
                f"{r['participants']:,}",
                f"{r['mean_support']:.0f}",
                "" if before is None else f"{before:.2f}",
                f"{cpu['now']:.2f}",
                "" if before is None else f"{before / cpu['now']:.1f}",
                "" if apart is None else f"{apart:.0e}" if apart else "0",
                f"{r['largest_gap']:.0e}",
            ]
        )
    head = ["participants", "with a weight", "before, CPU s", "now", "times as fast"]
    return rows([*head, "weights differ by", "value above the minimum by at most"], body)


def small_clients() -> str:
    """A round of many small clients, now and before."""
    found = read("small_clients")
    body = []
    for case in found["cases"]:
        cells = []
        for what in ("seconds", "cpu_seconds"):
            r = case[what]
            low, high = r["spread"]
            ratio = f"{r['ratio']:.2f} ({low:.2f} to {high:.2f})"
            cells += [f"{r['before']:.2f}", f"{r['now']:.2f}", ratio]
        reached = "yes" if case["cpu_seconds"]["ratio"] >= found["to_reach"] else "**no**"
        same = "yes" if case["same_bytes"] else "**no**"
        body.append([f"`{case['method']}`", *cells, reached, same])
    before = f"at {found['before']}"
    head = ["method", f"s a round, {before}", "now", "ratio (spread)"]
    head += [f"CPU s, {before}", "now", "ratio (spread)"]
    return rows([*head, f"{found['to_reach']:g} times", "same bytes"], body)


def start() -> str:
    """A run of nearly no work beside the import of torch."""
    found = read("start")
    names = {"torch": "`import torch`", "before": "`fedloom run`, before", "now": "now"}
    parts = {"first_round": "until it is imported, or the first round begins", "whole": "whole"}
    body = []
    for part, when in parts.items():
        measured = found[part]
        for name, title in names.items():
            times = ["", ""]
            if name in measured["times_torch"]:
                ratio, (low, high) = measured["times_torch"][name], measured["spread"][name]
                reached = "yes" if ratio <= found["at_most"] else "**no**"
                times = [f"{ratio:.2f} ({low:.2f} to {high:.2f})", reached]
            body.append([when, title, f"{measured['cpu_seconds'][name]:.2f}", *times])
    return rows(["", "", "CPU s", "times torch (spread)", f"at most {found['at_most']}"], body)


def side_by_side() -> str:
    """Many small runs: one after another, and side by side."""
    found = read("side_by_side")
    body = []
    for work in (name for name in found if name.startswith(("compare", "tune"))):
        measured = found[work]
        command, *rounds = work.partition(",")
        same = "yes" if measured["same_outcome"] else "**no**"
        for way, seconds in measured["median"].items():
            told = ["", "", same]
            if way in measured["times_as_fast"]:
                ratio, (low, high) = measured["times_as_fast"][way], measured["spread"][way]
                reached = "yes" if ratio >= found["to_reach"] else "**no**"
                told = [f"{ratio:.2f} ({low:.2f} to {high:.2f})", reached, same]
            title = f"`fedloom {command}`{''.join(rounds)}"
            body.append([title, way, f"{seconds:.1f}", *told])
    heads = ["18 runs by", "", "s", "times as fast (spread)", f"{found['to_reach']} times"]
    return rows([*heads, "same outcome"], body)


SECURE = "secure aggregation"
ORDER = (
    "none",
    "least batch and steps",
    "five epochs",
    "BatchNorm",
    SECURE,
    "noise 0.01",
    "noise 0.1",
    "example noise 0.5",
)


def leaks() -> str:
    """What a curious server learns, by data, method and defence."""
    runs = dict(read("leaks")["runs"])
    for label, found in list(runs.items()):
        if f"{SECURE} late" in found:
            data, method, _ = label.split(" | ")
            early, late = (found[f"{SECURE} {when}"] for when in ("early", "late"))
            told = late if "refused" in late else {"early": early, "late": late}
            runs[f"{data} | {method} | {SECURE}"] = {"accuracy": found["accuracy"], **told}
    parts, reasons = [], dict[str, str]()
    for data in dict.fromkeys(label.split(" | ")[0] for label in runs):
        methods = dict.fromkeys(k.split(" | ")[1] for k in runs if k.startswith(data))
        body = []
        for method in methods:
            for defence in ORDER:
                if found := runs.get(f"{data} | {method} | {defence}"):
                    body.append([method, defence, *_told(found)])
                    if "refused" in found:
                        reasons[f"{method}, {defence}"] = found["refused"]
        head = ["method", "defence", "accuracy", "labels wrong", "rows read", "member AUC", "found"]
        parts.append(f"**{data}**\n\n{rows(head, body)}")
    why = [f"- {where}: {reason}" for where, reason in reasons.items()]
    return "\n\n".join([*parts, "Dashes, and why:\n\n" + "\n".join(why)] if why else parts)


def _told(found: dict) -> list[str]:
    """The cells of one run: before the stroke in the first round, after it in the last."""
    if "late" not in found:
        return ["-"] * 5
    both = (found["early"], found["late"])
    labels = [f"{100 * one['labels']['error']:.0f}" for one in both]
    read_rows = [f"{one['rows']['identified']:g}" for one in both]
    members = found["late"]["members"]
    low, high = members["interval"]
    return [
        f"{100 * found['accuracy']:.1f}",
        " / ".join(labels),
        " / ".join(read_rows),
        f"{members['auc']:.2f} ({low:.2f} to {high:.2f})",
        f"{100 * members['found']:.1f}",
    ]


def privacy() -> str:
    """The papers' methods by noise: accuracy, and what was told."""
    runs = read("privacy")["runs"]
    settings = sorted({label.split(" | ")[1] for label in runs}, key=lambda s: (s != "none", s))
    methods = list(dict.fromkeys(label.split(" | ")[0] for label in runs))

    def accuracy(method: str, setting: str) -> str:
        run = runs.get(f"{method} | {setting}", {})
        if "accuracy" in run:
            return f"{100 * run['accuracy']:.1f}"
        return "refused" if "refused" in run else "-"

    def told(setting: str) -> str:
        found = [runs.get(f"{method} | {setting}", {}) for method in methods]
        single = sorted({round(r["epsilon"], 1) for r in found if "epsilon" in r})
        means = sorted({round(r["epsilon_of_mean"], 1) for r in found if r.get("epsilon_of_mean")})
        text = " to ".join(f"{value:g}" for value in dict.fromkeys([*single[:1], *single[-1:]]))
        return text + (f" ({means[0]:g})" if means else "")

    body = [
        [f"`{setting}`", told(setting), *(accuracy(method, setting) for method in methods)]
        for setting in settings
    ]
    return rows(["privacy", "epsilon", *methods], body)


def dbe_noise() -> str:
    """What DBE's noise on the mean would be worth, if features were no longer than 1."""
    body = [
        [f"{r['s']:g}", f"{r['q']:g}", f"{r['epsilon']:.4g}"] for r in read("privacy")["dbe_noise"]
    ]
    return rows(["s", "q", "epsilon of the mean alone"], body)


def uploads() -> str:
    """The papers' methods with smaller uploads: accuracy, megabytes, and those on the wire."""
    runs = read("uploads")["runs"]
    by_row: dict[tuple[str, str], dict[str, str]] = {}
    for label, run in runs.items():
        data, method, compression = label.split(" | ")
        by_row.setdefault((data, method), {})[compression] = (
            f"{100 * run['accuracy']:.1f}, {run['megabytes']:.2f} ({run['wire_megabytes']:.2f})"
        )
    columns = list(dict.fromkeys(label.split(" | ")[2] for label in runs))
    body = [[*row, *(cells.get(c, "") for c in columns)] for row, cells in by_row.items()]
    return rows(["data", "method", *(f"`{c}`" for c in columns)], body)


TROUBLES = {
    "kill": "`kill -9`",
    "kill, of a worker": "of them of a worker",
    "term": "SIGTERM",
    "ctrl_c": "Ctrl-C",
    "full": "full disk",
    "protected": "folder made read-only",
    "read_only": "read-only disk",
    "clock": "clock set wrong",
    "memory": "little memory",
    "memory, not felt": "of them without effect",
    "memory, aborted": "of them aborted by a library",
}


def soak() -> str:
    """Troubles by engine, and what grows."""
    engines = read("soak")["engines"]
    body, grown = [], []
    for name, r in engines.items():
        tried = [f"{TROUBLES.get(kind, kind)} {times}" for kind, times in r["tried"].items()]
        same = all(r["same"].values())
        reached = r.get("reached", r["rounds"])
        body.append(
            [
                f"`{name}`",
                f"{reached:,}" + ("" if reached >= r["rounds"] else f" of {r['rounds']:,}"),
                ", ".join(tried),
                str(len(r["lost"])),
                "yes" if same else "**no**",
                str(r["rounds_again"]["most"]) if "rounds_again" in r else "",
                ", ".join(r.get("started_again", [])),
            ]
        )
        for what, line in r.get("grows", {}).items():
            low, high = line["interval"]
            grown.append(
                [
                    f"`{name}`",
                    what.replace("_", ", "),
                    f"{line['mean']:.1f}",
                    f"{line['per_1000_rounds']:.2f} ({low:.2f} to {high:.2f})",
                ]
            )
    head = ["engine", "rounds", "tried", "lost", "bytes of the run left alone", "most rounds again"]
    head += ["had to be started again by hand"]
    table = rows(head, body)
    if not grown:
        return table
    return f"{table}\n\n{rows(['engine', 'what', 'mean', 'more after 1,000 rounds'], grown)}"


def fuzz() -> str:
    """Inputs by target."""
    targets = read("fuzz")["targets"]
    body = [
        [
            name,
            f"{r['tried']:,}",
            f"{r['refused']:,}",
            f"{r['tried'] - r['lost']:,}",
            f"{r['lost']}",
        ]
        for name, r in targets.items()
    ]
    total = [sum(r[key] for r in targets.values()) for key in ("tried", "refused", "lost")]
    body.append(["all", *(f"{n:,}" for n in (*total[:2], total[0] - total[2], total[2]))])
    return rows(["input", "tried", "of them refused", "held", "lost"], body)


def fuzz_guided() -> str:
    """Inputs by target, led by what they reach."""
    body = [
        [name, str(r["seconds"]), f"{r['tried']:,}", f"{r['refused']:,}", str(r["lost"])]
        for name, r in read("fuzz_guided")["targets"].items()
    ]
    return rows(["input", "seconds", "tried", "of them refused", "lost"], body)


def secure() -> str:
    """Runs as they are and masked."""
    body = []
    for name, r in read("secure").items():
        if not isinstance(r, dict) or "accuracy" not in r:
            continue
        up, down = (r[f"bytes {way} per client and round"] for way in ("up", "down"))
        body.append(
            [
                name,
                *(f"{100 * accuracy:.1f}" for accuracy in r["accuracy"]),
                f"{r['largest difference after one round']:.1e}",
                f"{r['largest difference at the server']:.1e}",
                *(f"{before / 1000:.1f} -> {after / 1000:.1f}" for before, after in (up, down)),
                f"{r['more seconds per round']:.2f}",
            ]
        )
    head = ["run", "plain, %", "masked, %", "largest difference after a round", "at the end"]
    return rows([*head, "kB up", "kB down", "more s per round"], body)


def secure_shares() -> str:
    """Shamir's scheme, here and Flower's."""
    found = read("secure")
    body = [
        [name, *(f"{seconds:.3f}" for seconds in r.values())]
        for name, r in found.items()
        if name.startswith("shares of")
    ]
    head = ["all secrets of a round, s", "made", "taken together"]
    return rows([*head, "made by Flower", "taken together by Flower"], body)


SHAPES = {"fashion_mnist": [1, 28, 28], "cifar10": [3, 32, 32], "pacs": [3, 64, 64]}


def evaluation() -> str:
    """Whole evaluations, now and before, and what their forward passes take by themselves."""
    alone = {}
    for r in read("evaluation")["networks"]:
        taken = r["microseconds_a_row"][str(r["rows_per_prediction"])]
        alone[r["network"], tuple(r["shape"])] = taken / 1e6

    def passes_of(r: dict) -> str:
        network, _, data = r["run"].partition(" on ")
        seconds = alone.get((network, tuple(SHAPES.get(data, []))))
        return "" if seconds is None else f"{r['rows'] * seconds:.2f}"

    body = [
        [
            r["run"],
            f"{r['rows']:,}",
            *(f"{r[f'{way}_cpu_seconds']:.2f}" for way in ("before", "now")),
            passes_of(r),
            f"{r['times_as_fast']:.2f} ({r['spread'][0]:.2f} to {r['spread'][1]:.2f})",
            "yes" if r["reached"] else "**no**",
            "yes" if r["same_accuracies"] else "**no**",
        ]
        for r in read("evaluation")["runs"]
    ]
    head = ["test rows of all clients", "rows", "at 7c3bcfa, CPU s", "now", "passes alone"]
    return rows([*head, "times as fast (spread)", "1.67 times", "same accuracies"], body)


def passes() -> str:
    """Predictions in passes of several sizes."""
    found = read("evaluation")["networks"]
    sizes = list(found[0]["microseconds_a_row"])
    body = [
        [
            f"`{r['network']}`, {' x '.join(map(str, r['shape']))}",
            *(f"{r['microseconds_a_row'][size]:,.0f}" for size in sizes),
            f"{r['rows_per_prediction']}",
            "yes" if all(r["same_bits"].values()) else "**no**",
        ]
        for r in found
    ]
    head = ["network, inputs", *(f"{size} rows" for size in sizes)]
    return rows([*head, "taken", "same bits for all"], body)


def diagnostics() -> str:
    """CPU seconds of every diagnostic, now and before."""
    body = []
    for name, r in read("diagnostics")["diagnostics"].items():
        apart = r["largest_difference"]
        body.append(
            [
                name.replace("_", " "),
                f"{r['before_cpu_seconds']:.1f}",
                f"{r['now_cpu_seconds']:.1f}",
                f"{r['times_as_fast']:.1f}",
                "" if apart is None else f"{apart:.0e}" if apart else "0",
            ]
        )
    return rows(["", "before, CPU s", "now", "times as fast", "numbers differ by"], body)


PLACES = {
    "leaks.md": {"leaks": leaks},
    "privacy.md": {"privacy": privacy, "dbe_noise": dbe_noise},
    "advise.md": {"advised": advised},
    "reliability.md": {"hostile": hostile, "soak": soak, "fuzz": fuzz, "fuzz_guided": fuzz_guided},
    "uploads.md": {"uploads": uploads},
    "secure-aggregation.md": {"secure": secure, "shares": secure_shares},
    "encoders.md": {"encoder": encoder},
    "performance.md": {
        "speed": speed,
        "tricks": tricks,
        "scale": scale,
        "scale_earlier": scale_earlier,
        "small_clients": small_clients,
        "fedpac_server": fedpac_server,
        "start": start,
        "side_by_side": side_by_side,
        "evaluation": evaluation,
        "passes": passes,
        "diagnostics": diagnostics,
    },
    "distributed.md": {
        "engines": engines,
        "deployment": deployment,
        "messages": messages,
        "advice": advice,
    },
}


def filled(page: str) -> str:
    """A page with every marked place as measured."""
    text = (DOCS / page).read_text()
    for name, make in PLACES[page].items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        if not re.search(pattern, text, re.DOTALL):
            raise SystemExit(f"{page} has no place for {name}")
        made = make()
        text = re.sub(pattern, lambda m, made=made: f"{m[1]}{made}\n{m[2]}", text, flags=re.DOTALL)
    return text


def main() -> None:
    """Rewrite the pages."""
    for page in PLACES:
        (DOCS / page).write_text(filled(page))


if __name__ == "__main__":
    main()
