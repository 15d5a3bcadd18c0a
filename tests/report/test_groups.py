"""Which runs stand in one table, and which never in one test."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folders import write_run

import fedloom as fl
from fedloom.errors import BadInput, RunFolderError
from fedloom.report.groups import group_runs
from fedloom.report.runs import find_runs


def write_comparison(folder: Path, methods: dict[str, list[str]]) -> None:
    """`comparison.json` of a folder that was moved since."""
    rows = [
        {"method": label, "seeds": [{"run": f"/moved/{run}"} for run in runs]}
        for label, runs in methods.items()
    ]
    (folder / "comparison.json").write_text(json.dumps({"methods": rows}))


def test_runs_that_differ_in_what_must_be_equal_stay_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", [(0.5,)])
    write_run(tmp_path / "b", "fedper", [(0.5,), (0.6,)])
    write_run(tmp_path / "c", "fedper", [(0.5,)], model="mlp(hidden=[8])")
    first, longer, smaller = group_runs(find_runs([tmp_path]))
    assert first.apart == []
    assert longer.apart == ["rounds is 2, not 1"]
    assert smaller.apart == ["model is mlp(hidden=[8]), not mlp"]


def test_methods_on_other_partitions_stay_apart(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", partition=0)
    write_run(tmp_path / "b", "fedper", partition=1, partition_seed=1)
    one, other = group_runs(find_runs([tmp_path]))
    assert [row.label for row in other.rows] == ["fedper"]
    assert other.apart[0].startswith("the clients hold other rows (partition ")
    assert one.same_partition


def test_seeds_may_have_partitions_of_their_own(tmp_path: Path) -> None:
    for seed in range(2):
        for method in ("fedavg", "fedper"):
            write_run(tmp_path / f"{method}{seed}", method, seed=seed, partition=seed)
    (group,) = group_runs(find_runs([tmp_path]))
    assert {row.label: len(row.runs) for row in group.rows} == {"fedavg": 2, "fedper": 2}
    assert not group.same_partition


def test_settings_of_a_method_make_rows_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedprox(mu=0.1)", lr=0.1)
    write_run(tmp_path / "b", "fedprox(mu=0.1)", lr=0.2)
    write_run(tmp_path / "c", "fedavg", lr=0.3)
    (group,) = group_runs(find_runs([tmp_path]))
    assert [row.label for row in group.rows] == [
        "fedavg + proximal(mu=0.1) (lr 0.1)",
        "fedavg + proximal(mu=0.1) (lr 0.2)",
        "fedavg",
    ]


def test_what_one_of_two_rows_does_not_have_only_the_other_says(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "fedavg", steps=5)
    write_run(tmp_path / "b", "fedavg", secure_aggregation="pairwise")
    write_run(tmp_path / "c", "fedavg", privacy="client(noise=0.5)")
    write_run(tmp_path / "d", "fedavg")
    (group,) = group_runs(find_runs([tmp_path]))
    assert [row.label for row in group.rows] == [
        "fedavg (steps 5)",
        "fedavg (secure_aggregation pairwise)",
        "fedavg (privacy client(noise=0.5))",
        "fedavg",
    ]


def test_a_run_given_twice_counts_once(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b")
    (group,) = group_runs(find_runs([tmp_path / "a", tmp_path, tmp_path / "a"]))
    assert len(group.runs) == 1
    assert group.repeated == [str(tmp_path / "b")]


def test_a_comparison_keeps_its_order(tmp_path: Path) -> None:
    for method in ("fedavg", "ditto", "local"):
        write_run(tmp_path / f"{method}-seed0", method)
    write_comparison(tmp_path, {m: [f"{m}-seed0"] for m in ("local", "fedavg", "ditto")})
    (group,) = group_runs(find_runs([tmp_path]))
    assert [row.label for row in group.rows] == ["local", "fedavg", "ditto"]


def test_a_method_is_called_as_it_was_written(tmp_path: Path) -> None:
    """A run's configuration holds the method in full, and beside it as it was written."""
    run = fl.run("fedavg + dbe", rounds=1, clients=2, out=str(tmp_path / "dbe"))
    assert run.experiment.config.method.startswith("fedavg(shared='*'")
    (group,) = group_runs(find_runs([tmp_path / "dbe"]))
    assert group.rows[0].label == "fedavg + dbe"


def test_rows_that_are_written_alike_are_told_apart(tmp_path: Path) -> None:
    for name, method in (("a", "fedprox(mu=0.1)"), ("b", "fedprox(mu=0.2)")):
        write_run(tmp_path / name, method, title="mine")
    (group,) = group_runs(find_runs([tmp_path]))
    assert [row.label for row in group.rows] == [
        "mine (method fedprox(mu=0.1))",
        "mine (method fedprox(mu=0.2))",
    ]


def test_another_format_is_refused_by_name(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "versions.json").write_text('{"fedloom": "0.0.9"}')
    with pytest.raises(RunFolderError, match=r"in format 1, of fedloom 0\.0\.9"):
        find_runs([path])


def test_a_method_unknown_here_is_shown_as_it_was_written(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "my_own(beta=2)")
    (group,) = group_runs(find_runs([tmp_path]))
    assert group.rows[0].label == "my_own(beta=2)"


def test_no_run_no_report(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"there is no run in .*; check the path"):
        find_runs([tmp_path])
    with pytest.raises(BadInput, match="at least one run folder"):
        find_runs([])


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a")
    (path / "summary.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"summary\.json is not JSON"):
        find_runs([path])
    (path / "partition.json").unlink()
    with pytest.raises(BadInput, match=r"cannot read .*partition\.json"):
        find_runs([path])
