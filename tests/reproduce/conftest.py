"""A table of a paper that never was, on the embedded digits."""

from __future__ import annotations

from pathlib import Path

import pytest

TABLE = """
title = "Accuracy of two methods on digits"
source = "Table 1"
seeds = [0, 1]

[settings]
data = "digits"
rounds = 2
lr = 0.05

[targets]
four = 1.0

[columns.four]
clients = 4
partition = "iid"

[columns.five]
clients = 5
partition = "iid"

[columns.mean]
average_of = ["four", "five"]

[rows.fedavg]
label = "FedAvg"
method = "fedavg"

[rows.fedprox]
method = "fedprox(mu=0.1)"
columns = ["four", "mean"]
lr = 0.02

[rows.fedprox.in.four]
method = "fedprox(mu=0.2)"

[rows.stranger]
absent = "its authors describe it in a picture only"

[printed.accuracy.four]
fedavg = [80.0, 0.5]
fedprox = 81.5
stranger = 99.0

[printed.accuracy.mean]
fedavg = 79

[printed.rounds_to_target.four]
fedavg = 1

[printed.happiness.four]
fedavg = 7
"""


@pytest.fixture
def table_file(tmp_path: Path) -> Path:
    """`fedpac/table1.toml` in a folder of tables."""
    file = tmp_path / "reproduce" / "fedpac" / "table1.toml"
    file.parent.mkdir(parents=True)
    file.write_text(TABLE, encoding="utf-8")
    return file
