"""What a method says of itself: its family, what travels, what stays, what it costs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedloom import catalogue
from fedloom.catalogue import catalogue_table, cost, family
from fedloom.core.method import Method
from fedloom.errors import BadInput
from fedloom.methods import register
from fedloom.observed_traffic import Traffic, runnable, traffic, traffic_of
from helpers import fedloom

FAMILIES = {
    "baseline",
    "personal layers",
    "personal model",
    "clusters and mixtures",
    "drift correction",
    "representation",
    "fixed classifier",
    "extra data",
    "fairness",
}


def test_every_method_has_a_family() -> None:
    assert {family(name) for name in register} == FAMILIES


def test_only_local_sends_nothing() -> None:
    assert [name for name in register if traffic(name).up == "nothing"] == ["local"]


@pytest.mark.parametrize("name", list(register))
def test_every_tensor_of_the_model_travels_or_stays(name: str) -> None:
    """Both stages are named on one of the two sides, or were sent once because nobody trains them;
    what is left out of an upload stays."""
    seen = traffic(name)
    up, stays = seen.up.split(", "), seen.stays.split(", ")
    once = [word.removesuffix(" (once)") for word in seen.down.split(", ") if "(once)" in word]
    model, _, left_out = up[0].partition(" without ")
    named = {model, *up, *stays, *once}
    assert named & {"model", "several models"} or {"body", "head"} <= named
    assert not left_out or left_out in stays


@pytest.mark.parametrize(
    ("recipe", "part"), [("scaffold", "control_variates"), ("dbe", "prbm"), ("ifca", "hypcluster")]
)
def test_a_recipe_is_of_the_family_of_what_it_makes(recipe: str, part: str) -> None:
    assert family(recipe) == family(part)


@pytest.mark.parametrize(
    ("name", "up", "down", "stays"),
    [
        ("fedavg", "model", "model", "nothing"),
        ("local", "nothing", "nothing", "model"),
        ("fedrep", "body", "body", "head, fine-tuned model"),
        ("lg_fedavg", "head", "head", "body"),
        ("fedbn", "model without BatchNorm", "model without BatchNorm", "BatchNorm"),
        ("ditto", "model", "model", "own model"),
        ("apfl", "model", "model", "own model, alpha"),
        ("ifca", "model, choice", "several models", "nothing"),
        ("fedem", "several models", "several models", "pi [3]"),
        ("fedproto", "sums [K, d], counts [K]", "prototypes [K, d], known [K]", "model"),
        ("dbe", "model, mean [d] (once)", "model, mean [d] (once)", "prbm, mean [d]"),
        ("moon", "model", "model", "model_contrast (body)"),
        ("knnper", "model", "model", "for tests z [rows, d], y [rows], lam"),
        (
            "dualfed",
            "model without BatchNorm statistics",
            "model without BatchNorm statistics",
            "BatchNorm statistics, projector, personal_head",
        ),
        (
            "scaffold",
            "model, control_variates (model)",
            "model, control_variates (model)",
            "control_variates (model)",
        ),
    ],
)
def test_what_travels_is_what_the_paper_says(name: str, up: str, down: str, stays: str) -> None:
    assert traffic(name) == Traffic(up, down, stays)


def test_what_travels_follows_the_hyper_parameters() -> None:
    """FedCR without aggregation shares no weights; FedPAC without alignment no centroids."""
    assert traffic_of("fedcr(shared='')").up == "precision [K, 256], precision_mean [K, 256]"
    assert "centroids" not in traffic_of("fedpac(align=false)").up
    assert traffic_of("fedavg(shared='*.weight')").up == "part of body, part of head"


def test_a_method_that_cannot_be_tried_is_listed_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(name: str) -> Traffic:
        raise BadInput(f"{name} wants images")

    monkeypatch.setattr(catalogue, "traffic", refuse)
    assert "Up: unknown (BadInput)." in " ".join(fedloom("list").out.split())


@pytest.mark.parametrize("name", list(register))
def test_everything_can_be_run_alone_or_on_fedavg(name: str) -> None:
    alone = isinstance(register[name](), Method)
    assert runnable(name) == (name if alone else f"fedavg + {name}")


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, float]]:
    """Costs as if measured."""
    known: dict[str, dict[str, float]] = {}
    monkeypatch.setattr(catalogue, "_costs", lambda: known)
    return known


def test_a_cost_names_what_differs_from_fedavg(costs: dict[str, dict[str, float]]) -> None:
    costs["fedper"] = {"time": 0.98, "up": 0.995, "down": 0.95, "once": 0.0}
    costs["scaffold"] = {"time": 1.234, "up": 2.0, "down": 2.0, "once": 0.0}
    costs["fedavg_ft"] = {"time": 1.0, "up": 1.0, "down": 1.0, "once": 11.4}
    costs["fedavg"] = {"time": 1.2, "up": 1.0, "down": 1.0, "once": 0.0}
    costs["local"] = {"time": 0.9, "up": 0.0, "down": 0.0, "once": 0.0}
    assert cost("fedper") == "x0.98 time, x0.95 down"
    assert cost("scaffold") == "x1.2 time, x2.0 up, x2.0 down"
    assert cost("fedavg_ft") == "x1.0 time, 11 rounds of FedAvg once"
    assert cost("local") == "x0.9 time, x0 up, x0 down"
    assert cost("ditto") == "not measured"
    assert cost("fedavg") == "x1 (the measure)"


def test_measured_costs_are_of_registered_names() -> None:
    file = Path(catalogue.__file__).parent / "methods/costs.json"
    if not file.exists():
        pytest.skip("nothing is measured yet")
    found = json.loads(file.read_text())
    assert set(found["methods"]) <= set(register)
    assert found["command"] == "python benchmarks/costs.py"
    for entry in found["methods"].values():
        assert set(entry) == {"time", "up", "down", "once"}
        assert all(value >= 0 for value in entry.values())


def test_the_list_tells_family_travel_and_cost() -> None:
    words = " ".join(fedloom("list").out.split())
    wanted = "Up: body. Down: body. Stays: head, fine-tuned model. Cost: "
    assert "personal layers (method). " in words
    assert wanted in words


def test_a_wide_terminal_has_a_column_for_every_fact() -> None:
    entries = catalogue.catalogue("methods")
    heads = [str(column.header) for column in catalogue_table("methods", entries, 200).columns]
    assert heads == list(entries[0])
    assert len(catalogue_table("methods", entries, 80).columns) == 2


def test_a_page_ends_with_what_was_found_out() -> None:
    tail = fedloom("show", "fedper").out.splitlines()[-6:]
    assert tail[:4] == [
        "Family: personal layers",
        "Travels up: body",
        "Comes down: body",
        "Stays: head",
    ]
    assert tail[4].startswith("Cost beside FedAvg: ")
    assert tail[5] == "Worth tuning: lr, adapt_epochs in 0 .. 10 (whole)"


def test_a_first_sentence_does_not_end_at_an_initial() -> None:
    entries = {entry["name"]: entry["what it does"] for entry in catalogue.catalogue("methods")}
    assert entries["pfedme"].endswith("(T. Dinh et al., NeurIPS 2020, Algorithm 1).")
    assert all(text.endswith(".") for text in entries.values())
    assert all(text.count("(") == text.count(")") for text in entries.values())


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("cnn4", ["model cnn4(stages='body', projector=0)"]),
        ("ResNet-18", ["model resnet18("]),
        ("quantity", ["partition modifier quantity(sizes=(300, 600, 1200))"]),
        ("dirichlet", ["partition dirichlet(alpha"]),
        ("merged", ["split merged(train="]),
        ("rotate", ["shift rotate("]),
        ("crop", ["augmentation crop(pad=4)"]),
        ("digits", ["data digits"]),
        ("cohort", ["protocol cohort"]),
        ("pool", ["engine pool"]),
        ("dbe", ["dbe(kappa=None, ", "split dbe(pool=None)", "protocol dbe"]),
    ],
)
def test_show_knows_every_kind(name: str, begins: list[str]) -> None:
    """And says which it is; a name of several kinds has a page of each. What the run fills in
    (shapes, labels, seeds) is not shown as an argument."""
    text = "\n\n" + fedloom("show", name).out
    assert all(f"\n\n{begin}" in text for begin in begins)
    assert "shape" not in text.split("\n\n")[1]


def test_a_name_of_no_kind_is_answered_in_a_line() -> None:
    assert "unknown name 'cnn5'; did you mean 'cnn4'?" in fedloom("show", "cnn5").err
    said = " ".join(fedloom("show", "xyzzy").err.split())
    assert said.startswith("fedloom: nothing is called 'xyzzy'; `fedloom list KIND` shows what")
