"""One site over the real codec sends what spoils a run within the bounds on rows and length.

python attacks/uploads.py
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hostile import HOSTILE, Federation, Spoil, hostile_federation

from fedloom.engines.flower import codec

MODEL = f"{codec.STATE}model"


def trained(change: Spoil) -> Spoil:
    return lambda r: change(r) if "rows" in r.config_records.get("head", {}) else r


def below_zero(records: RecordDict) -> RecordDict:
    tree = dict(records.array_records[MODEL])
    keys = [key for key in tree if key.endswith("running_var")]
    changed = {key: Array((-3 * np.abs(tree[key].numpy())).astype(np.float32)) for key in keys}
    records[MODEL] = ArrayRecord({**tree, **changed})
    return records


def scored(records: RecordDict) -> RecordDict:
    for name in [name for name in records.config_records if name.startswith("score/")]:
        fields = dict(records.config_records[name])
        records[name] = ConfigRecord(
            {**fields, "rows": 10**15, "values": [1.0] * len(fields["names"])}
        )
    return records


def tell(federation: Federation, name: str, spoil: Spoil, **settings: object) -> None:
    try:
        result = federation.run(name, spoil, **settings)
    except Exception as e:
        print(f"{name}: the run is lost: {type(e).__name__}: {str(e)[:200]}")
        return
    print(f"{name}: absent {[dict(r.absent) for r in result.records]}")
    print(f"   loss {[r.loss for r in result.records]}")
    for record in result.records:
        for score in record.scores:
            spread = score.spread()
            of_all = f"mean {spread.mean:.3f}, by rows {spread.weighted:.3f}"
            print(f"   round {record.round} {score.at}: {of_all}, rows {score.rows}")


def main() -> None:
    logging.disable(logging.INFO)
    batch = {"model": "mlp(hidden=[16], norm=batch)", "method": "fedavg", "rounds": 3}
    with tempfile.TemporaryDirectory() as scratch:
        federation = hostile_federation(Path(scratch))
        tell(federation, "honest", lambda r: r, **batch)
        tell(federation, "variance", trained(below_zero), **batch)
        tell(federation, "scores", scored, **batch)
    print("hostile is client", HOSTILE)


if __name__ == "__main__":
    main()
