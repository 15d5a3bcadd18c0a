"""Small federations as configured, and which cells are played."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.methods import parse_method
from fedloom.reproduce.dry_run import DryRuns, shrunk, with_single_epochs
from fedloom.reproduce.format import read_table
from fedloom.reproduce.small_data import CLIENTS, OTHER, TRAIN, small_federation, smallest_side
from fedloom.runs.config import RunConfig


def config(**settings: object) -> RunConfig:
    return RunConfig.checked({"data": "cifar10", "model": "cnn4", **settings})


def test_the_partition_is_as_configured_and_then_cut() -> None:
    """Clients of 600 rows need more rows than the few that are generated."""
    settings = {"partition": "dominant(uniform=0.2, size=600)", "split": "fedpac"}
    data = small_federation(config(**settings, clients=20), 16)
    assert data.shape == (3, 16, 16)
    assert data.classes == 10
    assert [[len(rows) for rows in client] for client in data.partition.clients] == [
        [TRAIN, 0, OTHER]
    ] * CLIENTS
    with pytest.raises(Exception, match="dominant"):
        small_federation(config(partition="dominant(uniform=7)"), 16)


def test_newcomers_and_names_and_shared_tests_stay() -> None:
    assert len(small_federation(config(newcomers=20, clients=100), 16)) == CLIENTS + 1
    pacs = config(data="pacs", partition="by_domain", split="dualfed(train=500)")
    assert small_federation(pacs, 16).client_names == ["art_painting", "sketch"]
    rotated = config(data="mnist", shift="rotate(step=15)", split="fedbr", clients=10)
    data = small_federation(rotated, 16)
    assert len(data.shared_tests) == 2
    assert {len(rows) for rows in data.shared_tests.values()} == {OTHER}


def test_images_are_the_smallest_that_the_network_takes() -> None:
    assert smallest_side(config(model="resnet18", image_size=227)) == 16
    assert smallest_side(config(model="vgg11")) is None  # nothing smaller than 32 is left by it
    assert smallest_side(config(model="vgg11", data="tiny_imagenet")) == 32
    assert smallest_side(config(data="har", model="har_cnn")) is None


def test_a_small_run_keeps_what_decides_its_code() -> None:
    wanted = config(method="fedrep(head_epochs=10)", epochs=5, lr=0.3, participation=0.1)
    small = shrunk(wanted)
    assert (small.method, small.model) == (wanted.method, "cnn4")
    assert (small.rounds, small.epochs, small.participation) == (2, 1, 0.5)
    assert shrunk(config(steps=50)).steps == 1
    assert shrunk(config()).epochs is None
    method = with_single_epochs(parse_method("fedrep(head_epochs=10) + dbe(init_epochs=3)"))
    assert method.head_epochs == 1  # type: ignore[attr-defined]
    assert [getattr(term, "init_epochs", 1) for term in method.terms] == [1] * len(method.terms)


def test_cells_through_the_same_code_are_played_once(table_file: Path) -> None:
    """FedProx without a pull is other code; numbers of clients and learning rates are not."""
    dry_runs = DryRuns()
    assert list(dry_runs.play(read_table(table_file))) == []
    assert dry_runs.runs == 2
    text = table_file.read_text(encoding="utf-8")
    table_file.write_text(text.replace("mu=0.2", "mu=0.3").replace("lr = 0.05", "lr = 0.5"))
    assert list(dry_runs.play(read_table(table_file))) == []
    assert dry_runs.runs == 2
    table_file.write_text(text.replace("mu=0.2", "mu=0.0"))
    assert list(dry_runs.play(read_table(table_file))) == []
    assert dry_runs.runs == 3


def test_a_cell_begins_with_the_small_run_of_another_or_with_drawn_weights(
    table_file: Path,
) -> None:
    text = table_file.read_text(encoding="utf-8")
    begun = text.replace("clients = 5", 'clients = 5\nstart = "cell:four/fedavg"')
    table_file.write_text(begun.replace("clients = 4", 'clients = 4\nstart = "x.safetensors"'))
    assert list(DryRuns().play(read_table(table_file))) == []


def test_what_does_not_work_is_named(table_file: Path) -> None:
    text = table_file.read_text(encoding="utf-8")
    table_file.write_text(text.replace('"iid"', '"by_domain"', 1), encoding="utf-8")
    (sentence, *more) = DryRuns().play(read_table(table_file))
    assert sentence.startswith(f"{table_file}, row 'fedavg' in column 'four': ")
    assert "domain" in sentence
    assert len(more) == 1
