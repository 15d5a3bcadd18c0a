"""From clients' scores to the numbers of a round, and from rounds to the number of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedloom.core.evaluate import Protocol, Score, summarize
from fedloom.core.method import Method
from fedloom.errors import BadInput

Record = dict[str, Any]
"""One line of the journal."""


def round_scores(per_client: Mapping[str, Mapping[int, Score]]) -> dict[str, Record]:
    """For every "moment/split": statistics over clients and each client's accuracy."""
    return {at: _statistics(scores) for at, scores in sorted(per_client.items()) if scores}


def _statistics(scores: Mapping[int, Score]) -> Record:
    ids = sorted(scores)
    accuracy = {i: scores[i]["accuracy"] for i in ids}
    n = {i: int(scores[i]["n"]) for i in ids}
    stats = summarize(list(accuracy.values()), list(n.values()))
    further = {
        key: sum(scores[i][key] for i in ids) / len(ids)
        for key in scores[ids[0]]
        if key not in ("accuracy", "n")
    }
    return {**stats, **further, "clients": _text_keys(accuracy), "n": _text_keys(n)}


def _text_keys(values: Mapping[int, Any]) -> dict[str, Any]:
    return {str(k): v for k, v in values.items()}


def result(protocol: Protocol, method: Method, records: list[Record]) -> Record:
    """The number of a run, chosen as the protocol says, with spread over clients.

    Keys: `accuracy`, `accuracy_std`, `worst_decile`, `selected` (round, or None where several
    rounds contribute).
    """
    moment: str = "shared" if protocol.on == "shared" else protocol.moment_of(method)
    if protocol.clients == "new":
        moment = f"newcomers/{'received' if protocol.moment == 'received' else 'adapted'}"
    at = f"{moment}/{protocol.split}"
    scored = [r for r in records if at in r.get("scores", {})]
    if not scored:
        raise BadInput(f"nothing was scored at {at}; evaluate at least once (eval_every)")
    value = "weighted" if protocol.average == "samples" else "mean"
    if protocol.select == "best_test_per_client":
        return _best_of_each_client([r["scores"][at] for r in scored], value)
    if protocol.select == "mean_of_five_best_test":
        best = sorted((r["scores"][at] for r in scored), key=lambda s: s[value])[-5:]
        return _average(best, value)
    if protocol.select == "best_val":
        by_val = f"{moment}/val"
        chosen = max(scored, key=lambda r: r["scores"][by_val][value])
    elif protocol.select == "best_test":
        chosen = max(scored, key=lambda r: r["scores"][at][value])
    else:
        chosen = scored[-1]
    return {**_average([chosen["scores"][at]], value), "selected": chosen["round"]}


def _average(stats: list[Record], value: str) -> Record:
    def over(key: str) -> float:
        return float(sum(s[key] for s in stats) / len(stats))

    return {
        "accuracy": over(value),
        "accuracy_std": over("std"),
        "worst_decile": over("worst_decile"),
        "selected": None,
    }


def _best_of_each_client(stats: list[Record], value: str) -> Record:
    n = {i: rows for s in stats for i, rows in s["n"].items()}
    best = [max(s["clients"][i] for s in stats if i in s["clients"]) for i in n]
    found = summarize(best, list(n.values()))
    return _average([found], value)


def total(activities: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Seconds by place and activity, over rounds.

    >>> total([{"main": {"data": 1.0}}, {"main": {"data": 2.0}, "workers": {}}])
    {'main': {'data': 3.0}, 'workers': {}}
    """
    summed: dict[str, dict[str, float]] = {}
    for at in activities:
        for place, seconds in at.items():
            so_far = summed.setdefault(place, {})
            for name, more in seconds.items():
                so_far[name] = so_far.get(name, 0.0) + more
    return summed
