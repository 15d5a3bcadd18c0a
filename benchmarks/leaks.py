"""What an honest-but-curious server learns from the uploads of the papers' methods.

    python benchmarks/leaks.py             what is not in results/leaks.json yet; about half an hour
    python benchmarks/leaks.py WORD ...    of these only, e.g. digits FedAvg

Six clients, a digits or Fashion-MNIST federation by Dirichlet(0.3). The uploads of an early and of
the last round of real runs are attacked as in `leak_attacks.py`, and scored against the clients'
true rows and labels. A defence is a dictionary of settings; one whose keys this version of fedloom
does not know is left out.
"""

from __future__ import annotations

import fcntl
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from leak_attacks import Curious, Message, Rows, client_rows, mean_message, strongest
from papers import METHODS as PAPERS
from torch import Tensor

import fedloom as fl
from fedloom import analysis
from fedloom.core.evaluate import Ask
from fedloom.core.message import Up
from fedloom.core.tree import State
from fedloom.data import FederatedData
from fedloom.engines import JobOf
from fedloom.engines.inline import Inline
from fedloom.files import write_json
from fedloom.launch.start import start
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.folder import current_versions

RESULTS = Path(__file__).parent / "results" / "leaks.json"
METHODS = {**PAPERS, "FedRep": "fedrep"}
DATA = {
    "digits": {"data": "digits", "split": "capped(train=60, share=0.5)", "model": "mlp"},
    "Fashion-MNIST": {
        "data": "fashion_mnist",
        "split": "capped(train=60, share=0.5)",
        "model": "small_cnn",
    },
}
PLAIN = {"rounds": 20, "batch_size": 10, "epochs": 1}
DEFENCES: Mapping[str, Mapping[str, Any]] = {
    "least batch and steps": PLAIN,
    "none": {"rounds": 60, "batch_size": 4, "steps": 1},
    "noise 0.1": {**PLAIN, "privacy": "client(clip=1.0, noise=0.1)"},
    "BatchNorm": {**PLAIN, "norm": "batch"},
    "noise 0.01": {**PLAIN, "privacy": "client(clip=1.0, noise=0.01)"},
    "five epochs": {**PLAIN, "epochs": 5},
    "example noise 0.5": {**PLAIN, "privacy": "example(clip=1.0, noise=0.5)"},
}
SECURE = "secure aggregation"
"""Of the runs with least batch and steps: the same uploads, of which the server sees the mean."""
ONLY_WHO = ("mean_regularization",)
"""Of single uploads it reads only whose they are, which a mean does not hide."""
COMMON = {"clients": 6, "partition": "dirichlet(alpha=0.3)", "normalize": "half", "seed": 1}
CLIENTS_INVERTED = 2
"""Clients whose rows are looked for; labels and members are of all six."""
MOST_TESTS = 60
"""Test rows of a client that are candidates: as many as it has training rows at most."""


class Listening(Inline):
    """The reference engine, which keeps messages: of some rounds all, of others FedBR's means."""

    def __init__(self, rounds: Sequence[int]) -> None:
        super().__init__()
        self.rounds, self.messages = rounds, list[Message]()

    def clients(
        self, ids: Sequence[int], job: JobOf, ask: Ask | None
    ) -> Iterator[tuple[int, Up, State]]:
        def noted(cid: int) -> Any:
            made = job(cid)
            self._down[cid] = made.down
            return made

        self._down: dict[int, Any] = {}
        for cid, up, kept in super().clients(ids, noted, ask):
            down = self._down[cid]
            if down.plan.kind != "adapt":
                wanted = down.plan.kind == "special" or down.plan.t in self.rounds
                state = {n: t for n, t in up.state.items() if wanted or n == "fedbr"}
                if state:
                    self.messages.append(Message(down.plan, cid, down.state, state, up.n))
            yield cid, up, kept


@cache
def federation(name: str) -> FederatedData:
    """Of a data set by its name here."""
    settings = DATA[name]
    config = RunConfig.checked({**COMMON, "data": settings["data"], "split": settings["split"]})
    return Experiment.build(config).data


def tests_of(data: FederatedData, cid: int) -> Rows:
    _, others = client_rows(data.client(cid))
    return Rows(others.x[:MOST_TESTS], others.y[:MOST_TESTS])


def known_to_all(settings: Mapping[str, Any]) -> bool:
    return set(settings) - {"norm"} <= set(RunConfig.model_fields)


# ------------------------------------------------------------------ one run


def attacked(name: str, method: str, defence: Mapping[str, Any]) -> dict[str, Any]:
    """A run, and what its uploads tell; of each round by itself."""
    data, settings = federation(name), dict(defence)
    keys = {**COMMON, **DATA[name], "method": method, **settings}
    if norm := keys.pop("norm", None):
        keys["model"] = f"{keys['model']}(norm={norm})"
    config = RunConfig.checked({**keys, "eval_every": settings["rounds"]})
    experiment = Experiment.build(config, data=data)
    engine = Listening((1, config.rounds))
    result = start(experiment, engine)
    found: dict[str, Any] = {"accuracy": round(result.accuracy, 4)}
    for when, t in (("early", 1), ("late", config.rounds)):
        found[when] = round_told(experiment, engine.messages, t)
        if defence is PLAIN:
            found[f"{SECURE} {when}"] = mean_told(experiment, engine.messages, t)
    return found


def curious(experiment: Experiment, cid: int) -> Curious:
    """The server, which has the other clients' test rows."""
    data = experiment.data
    others = [tests_of(data, i) for i in range(len(data)) if i != cid]
    rows = Rows(torch.cat([o.x for o in others]), torch.cat([o.y for o in others]))
    return Curious(experiment.program, rows)


def round_told(experiment: Experiment, messages: Sequence[Message], t: int) -> dict[str, Any]:
    """What the uploads of one round tell, one by one."""
    of_round = [m for m in messages if m.plan.kind == "train" and m.plan.t == t]
    servers = {m.cid: curious(experiment, m.cid) for m in of_round}
    labels = [servers[m.cid].label_shares(m) for m in of_round]
    scores = []
    for m in of_round:
        rows = candidates(experiment, m.cid)
        others = [o for o in of_round if o.cid != m.cid]
        scores.append(servers[m.cid].membership_scores(m, others, rows))
    told = {
        "labels": labels_told(experiment, of_round, labels),
        "members": members_told(experiment, of_round, scores),
    }
    rows_found = []
    for m in of_round[:CLIENTS_INVERTED]:
        history = [h for h in messages if h.cid == m.cid and h.plan.t < m.plan.t]
        found = servers[m.cid].rows(m, history)
        if t == 1:  # what was sent once, before the first round
            for special in (h for h in history if h.plan.kind == "special"):
                found |= servers[m.cid].rows(special, [])
        rows_found.append(identified(experiment, [m.cid], found))
    return told | {"rows": rows_told(rows_found)}


def mean_told(experiment: Experiment, messages: Sequence[Message], t: int) -> dict[str, Any]:
    """What the mean of a round tells; "refused" where a part reads single uploads."""
    for part in experiment.program.method.parts:
        if (part.gathers and part.name not in ONLY_WHO) or part.gathers_model:
            return {"refused": f"{part.name} reads single uploads"}
    of_round = [m for m in messages if m.plan.kind == "train" and m.plan.t == t]
    uniform = experiment.program.method.weighting == "uniform"
    mean = mean_message(of_round, lambda m: 1.0 if uniform else float(m.n))
    servers = {m.cid: curious(experiment, m.cid) for m in of_round}
    each = Message(mean.plan, -1, mean.down, mean.up, round(fmean(m.n for m in of_round)))
    shares = servers[0].label_shares(each)
    scores = [
        servers[m.cid].membership_scores(mean, [], candidates(experiment, m.cid)) for m in of_round
    ]
    found = servers[0].rows(each, [])
    everybody = [m.cid for m in of_round]
    return {
        "labels": labels_told(experiment, of_round, [shares] * len(of_round)),
        "members": members_told(experiment, of_round, scores),
        "rows": rows_told([identified(experiment, everybody, found)], of=len(everybody)),
    }


# ------------------------------------------------------------------ scored


def candidates(experiment: Experiment, cid: int) -> Rows:
    """A client's training rows, then as many test rows as there are."""
    members, _ = client_rows(experiment.data.client(cid))
    others = tests_of(experiment.data, cid)
    return Rows(torch.cat([members.x, others.x]), torch.cat([members.y, others.y]))


def labels_told(
    experiment: Experiment, messages: Sequence[Message], shares: Sequence[Mapping[str, Tensor]]
) -> dict[str, Any]:
    """Error of the estimated shares, in the mean over clients, and of a guess."""
    classes = experiment.data.classes
    counts = [
        torch.bincount(experiment.data.client(m.cid).train.y, minlength=classes) for m in messages
    ]
    if not shares[0]:
        return {}
    errors = {
        name: [analysis.share_error(s[name], c) for s, c in zip(shares, counts, strict=True)]
        for name in shares[0]
    }
    half = [m.cid % 2 == 0 for m in messages]
    best = strongest({name: [-e for e in each] for name, each in errors.items()}, half)
    crossed = [errors[best[1] if h else best[0]][i] for i, h in enumerate(half)]
    guess = torch.ones(classes)
    return {
        "error": round(fmean(crossed), 4),
        "guess": round(fmean(analysis.share_error(guess, c) for c in counts), 4),
        "by": sorted(set(best)),
        "all": {name: round(fmean(each), 4) for name, each in errors.items()},
    }


def members_told(
    experiment: Experiment, messages: Sequence[Message], scores: Sequence[Mapping[str, Tensor]]
) -> dict[str, Any]:
    """The attack that does best on half of the clients, on the other half; all clients' rows
    together, each client's scores on one scale."""
    sizes = [len(experiment.data.client(m.cid).train) for m in messages]

    def split(name: str, i: int) -> tuple[Tensor, Tensor]:
        s = scores[i][name]
        s = (s - s.mean()) / s.std().clamp_min(1e-9)
        return s[: sizes[i]], s[sizes[i] :]

    half = [m.cid % 2 == 0 for m in messages]
    by_attack = {
        name: [analysis.membership(*split(name, i)).auc for i in range(len(messages))]
        for name in scores[0]
    }
    best = strongest(by_attack, half)
    pairs = [split(best[1] if h else best[0], i) for i, h in enumerate(half)]
    told = analysis.membership(torch.cat([a for a, _ in pairs]), torch.cat([b for _, b in pairs]))
    return {
        "auc": round(told.auc, 4),
        "interval": [round(x, 4) for x in told.interval],
        "advantage": round(told.advantage, 4),
        "advantage_by_chance": round(told.advantage_by_chance, 4),
        "found": round(told.found, 4),
        "found_interval": [round(x, 4) for x in told.found_interval],
        "rows": [told.members, told.others],
        "by": sorted(set(best)),
        "all": {name: round(fmean(each), 4) for name, each in by_attack.items()},
    }


def identified(
    experiment: Experiment, cids: Sequence[int], found: Mapping[str, Tensor]
) -> dict[str, Any]:
    """Of each attack's reconstructions, which rows of these clients they point to."""
    data = experiment.data
    own = torch.cat([client_rows(data.client(cid))[0].x for cid in cids])
    others = torch.cat([tests_of(data, cid).x for cid in range(len(data))])
    each = {name: analysis.identify(x, own, others) for name, x in found.items() if len(x)}
    return {"rows": len(own), "attacks": each, "tried": list(found)}


def rows_told(each: Sequence[Mapping[str, Any]], of: int = 1) -> dict[str, Any]:
    """Per upload: rows pointed to by any attack, and by each."""

    def together(what: str) -> float:
        return (
            fmean(
                len(set().union(*(getattr(a, what) for a in e["attacks"].values()))) for e in each
            )
            / of
        )

    names = dict.fromkeys(name for e in each for name in e["tried"])
    return {
        "identified": round(together("rows"), 2),
        "exact": round(together("exact"), 2),
        "mistaken": round(together("mistaken"), 2),
        "of": round(fmean(e["rows"] for e in each) / of, 1),
        "all": {
            name: {
                "identified": round(
                    fmean(
                        len(e["attacks"][name].rows) if name in e["attacks"] else 0
                        for e in each
                        if name in e["tried"]
                    )
                    / of,
                    2,
                ),
                "psnr": [
                    round(min(e["attacks"][name].psnr, 99.0), 1)
                    for e in each
                    if name in e["attacks"]
                ],
            }
            for name in names
        },
    }


def measured() -> dict[str, Any]:
    """What is in the result file."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {"runs": {}}


def keep(label: str, found: Mapping[str, Any]) -> None:
    """Add one run to the file, to which several processes may write."""
    with open(__file__) as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        results = measured()
        results["runs"][label] = found
        results["settings"] = {"common": COMMON, "data": DATA, "defences": DEFENCES}
        results["versions"] = current_versions()
        write_json(RESULTS, results)


def main() -> None:
    torch.set_num_threads(1)
    only = sys.argv[1:]
    done = measured()["runs"]
    for defence, settings in DEFENCES.items():
        if not known_to_all(settings):
            print(f"left out: {defence}, for which this version has no settings", flush=True)
            continue
        for name in DATA:
            for title, method in METHODS.items():
                label = f"{name} | {title} | {defence}"
                if label in done or (only and not all(o in label for o in only)):
                    continue
                began = time.monotonic()
                try:
                    found = attacked(name, method, settings)
                except fl.FedloomError as e:
                    found = {"refused": str(e)}
                keep(label, found)
                print(label, f"{time.monotonic() - began:.0f} s", brief(found), flush=True)


def brief(found: Mapping[str, Any]) -> str:
    """One line of what was found late."""
    if "late" not in found:
        return str(found)
    late = found["late"]
    return (
        f"accuracy {found['accuracy']}, labels {late['labels'].get('error')},"
        f" rows {late['rows']['identified']} ({late['rows']['mistaken']}),"
        f" auc {late['members']['auc']}"
    )


if __name__ == "__main__":
    main()
