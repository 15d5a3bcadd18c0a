"""Each rule refuses what it is for, at settings that every other rule permits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from fedloom.core.revelations import REVELATIONS
from fedloom.core.term import Term
from fedloom.methods import parse_method, register
from fedloom.models import models
from fedloom.policy import Policy, Refusal, SiteFacts, modules_of, refusals
from fedloom.policy.ranges import USUAL
from fedloom.runs.config import RunConfig

SITE = SiteFacts(
    rows=142, smallest_class=20, kind="table", classes=2, shape=(30,), test_rows=48, val_rows=0
)
IMAGES = replace(SITE, kind="image", shape=(3, 32, 32))
TEXTS = replace(SITE, kind="text", shape=(200,))
PERMITTED = {
    "clients": 3,
    "min_clients": 2,
    "model": "mlp(norm=batch)",
    "batch_size": 10,
    "drop_last": True,
}


def judged(
    facts: SiteFacts = SITE, policy: dict[str, Any] | None = None, **keys: Any
) -> list[Refusal]:
    return refusals(
        Policy.checked(**(policy or {})), RunConfig.checked({**PERMITTED, **keys}), facts
    )


def rules(*args: Any, **keys: Any) -> set[str]:
    return {refusal.rule for refusal in judged(*args, **keys)}


def test_honest_settings_are_permitted() -> None:
    assert not judged()
    assert not judged(method="fedper + proximal", lr=0.01, epochs=5, momentum=0.9, decay=0.999)
    assert not judged(optimizer="adam", lr=1e-3, weight_decay=1e-4)
    assert not judged(IMAGES, model="cnn4", augment="crop(pad=4) + flip", image_size=32)
    assert not judged(IMAGES, model="small_cnn(channels=[16], norm=batch)")
    assert not judged(batch_size=1000, drop_last=False)  # every step over all rows


@pytest.mark.parametrize(
    ("rule", "keys"),
    [
        ("small_batches", {"batch_size": 7}),
        ("small_batches", {"drop_last": False}),  # 142 = 14 * 10 + 2
        ("small_batches", {"batch_size": 141, "drop_last": False, "epochs": 2}),
        ("few_steps", {"batch_size": 141}),  # all rows but one: its gradient by subtraction
        ("few_steps", {"batch_size": 50}),
        ("some_rows", {"steps": 5}),
        ("some_rows", {"steps": 100}),
        ("some_rows", {"replacement": True, "drop_last": False}),
        ("most_steps", {"epochs": 1_000_000}),
        ("small_moves", {"lr": 1e-6}),
        ("small_moves", {"lr": 0.1, "clip": 1e-5}),
        ("small_moves", {"decay": 0.5, "rounds": 50}),
        ("small_moves", {"optimizer": "adam", "lr": 1e-6}),
        ("small_moves", {"optimizer": "adam", "lr": 1e-3, "eps": 1e6}),
        ("small_moves", {"server_lr": 0.0}),
        ("small_moves", {"server_optimizer": "adam", "server_lr": 0.1, "server_tau": 1e6}),
        ("small_moves", {"server_optimizer": "adam", "server_beta1": 1 - 1e-9}),
        ("small_moves", {"server_optimizer": "yogi", "server_lr": 0.001, "server_tau": 0.1}),
        ("small_moves", {"method": "fedpac(head_lr=1e-9)"}),
        ("small_moves", {"method": "pfedme(inner_lr=1e-9)"}),
        ("small_moves", {"method": "fedavg(lr=1e-9)"}),
        ("large_moves", {"lr": 1e10}),
        ("large_moves", {"decay": 2.0}),
        ("large_moves", {"server_lr": 1e6}),
        ("large_moves", {"lr": 0.1, "weight_decay": 10.0}),  # only the last batch would be left
        ("odd_settings", {"momentum": 0.99999}),
        ("odd_settings", {"optimizer": "adam", "lr": 1e-3, "beta1": 0.99999}),
        ("odd_settings", {"method": "fedprox(mu=20.0)"}),
        ("odd_settings", {"method": "fedcm(alpha=1e-9)"}),
        ("odd_settings", {"method": "fedrod(gamma=100.0)"}),
        ("odd_settings", {"method": "fedavg + model_contrast(mu=1e9)"}),
        ("odd_settings", {"method": "fedavg + dann(width=100000)"}),
        ("odd_settings", {"method": "hypcluster(server_lr=0.0)"}),
        ("few_participants", {"min_clients": 1}),
        ("few_participants", {"participation": 0.34}),
        ("few_participants", {"clients": 1}),
        ("raw_inputs", {"normalize": "none"}),
        ("other_rows", {"split": "merged(train=0.757)"}),
        ("other_rows", {"split": "capped(train=100)"}),
        ("other_rows", {"partition_seed": 1}),
        ("local_files", {"start": "/home/site/kept/first/model.safetensors"}),
        ("local_files", {"imports": "/home/site/tool.py"}),
        ("local_files", {"model": "timm_encoder(name='local-dir:/home/site')"}),
        ("local_files", {"model": "transformers_encoder(name='./kept')"}),
        ("local_files", {"model": "Timm_Encoder(resnet18, true)"}),
        ("most_rounds", {"rounds": 1001}),
        ("most_image_size", {"image_size": 100_000}),
        ("most_parameters", {"model": "mlp(hidden=[1000000, 1000000], norm=batch)"}),
        ("most_parameters", {"model": "mlp(norm=batch, projector=10000000)"}),
        ("most_parameters", {"model": "mlp(norm=batch) | mlp(hidden=[20000, 20000], norm=batch)"}),
        ("dense_layers", {"model": "mlp"}),
        ("dense_layers", {"model": "auto"}),
        ("dense_layers", {"model": "M_L_P"}),
        ("dense_layers", {"model": "mlp(hidden=[4000])"}),
        ("dense_layers", {"model": "mlp(norm=batch) | mlp"}),
        ("unknown", {"model": "net.py:Net"}),
        ("unknown", {"method": "nobody_knows"}),
        ("row_means", {"method": "FedAvg + Fed_Mix"}),
        ("row_means", {"method": "fedavg + fedmix(means=71, of=2)"}),
        ("row_means", {"method": "fedavg + fedmix(of=100)"}),
        ("row_means", {"method": "fedavg + fedbr"}),
        ("row_means", {"method": "fedavg + dbe(mean=running)"}),
        ("single_models", {"method": "fedfomo"}),
        ("single_models", {"method": "apple"}),
        ("row_weights", {"method": "fedem"}),
    ],
)
def test_a_rule_refuses_and_its_name_allows(rule: str, keys: dict[str, Any]) -> None:
    assert rule in rules(**keys)
    if rule in REVELATIONS:
        assert rule not in rules(policy={"allow": [rule]}, **keys)


def test_a_folder_that_is_not_permitted_is_not_read_to_judge_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is the hub asked: building the network to count its numbers would do both."""
    built: list[str] = []
    monkeypatch.setattr("fedloom.models.build_model", lambda spec, *_, **__: built.append(spec))
    assert "local_files" in rules(model="transformers_encoder(name='evil/model')")
    assert built == []


def test_weights_of_a_package_are_no_file_that_a_run_chooses() -> None:
    assert "local_files" not in rules(start="pretrained:efficientnet_lite0")


@pytest.mark.parametrize(
    ("rule", "facts", "keys"),
    [
        ("few_rows", replace(SITE, rows=49), {}),
        ("few_rows", SITE, {"method": "fedfomo(validation=0.99)"}),
        ("few_test_rows", replace(SITE, test_rows=1), {}),
        ("few_test_rows", replace(SITE, val_rows=9), {}),
        ("few_test_rows", SITE, {"method": "fedfomo(validation=0.01)"}),
        ("class_means", replace(SITE, smallest_class=1), {"method": "fedproto"}),
        ("class_means", replace(SITE, smallest_class=1), {"method": "fedpac"}),
        ("class_means", replace(SITE, smallest_class=1), {"method": "fedcr"}),
        ("class_counts", replace(SITE, smallest_class=9), {"method": "fedavg + fedgen"}),
        ("feature_mean", replace(SITE, rows=49), {"method": "fedavg + dbe"}),
        ("rare_classes", replace(SITE, smallest_class=1), {"batch_size": 1000}),
        ("rare_classes", replace(SITE, smallest_class=1), {"model": "mlp(hidden=[])"}),
        ("rare_classes", replace(SITE, smallest_class=1), {"model": "resnet18(frozen='body.*')"}),
        ("class_weights", replace(SITE, smallest_class=1), {"method": "fedrod"}),
        ("words", TEXTS, {"model": "auto"}),
        ("blank_rows", IMAGES, {"model": "cnn4", "augment": "crop(pad=1000)"}),
        ("blank_rows", IMAGES, {"model": "cnn4", "augment": "crop(8) + crop(8) + crop(8)"}),
        ("dense_layers", IMAGES, {"model": "small_cnn(channels=[])"}),
        ("dense_layers", IMAGES, {"model": "small_cnn(channels=[16])"}),
        ("dense_layers", replace(IMAGES, shape=(1, 28, 28)), {"model": "cnn4"}),
        ("dense_layers", replace(IMAGES, shape=(64, 1, 1)), {"model": "groupnorm_cnn"}),
        ("unknown", IMAGES, {"model": "cnn4", "augment": "mine"}),
    ],
)
def test_a_rule_looks_at_the_rows(rule: str, facts: SiteFacts, keys: dict[str, Any]) -> None:
    assert rule in rules(facts, **keys)
    assert rule not in rules(facts, {"allow": [rule]}, **keys)


def test_numbers_for_each_class_are_fine_above_the_floor() -> None:
    assert not judged(method="fedproto", model="mlp")  # shares no layer at all
    assert not judged(method="fedavg + fedgen")
    assert not judged(method="fedavg + dbe")


def test_limits_are_the_sites_to_choose() -> None:
    chosen = {"least_batch": 2, "most_rounds": 5, "split": "merged(train=0.6, val=0.2)"}
    keys = {"drop_last": False, "rounds": 5, "split": "merged( train=0.6, val=0.2 )"}
    assert not judged(policy=chosen, **keys)
    assert rules(policy={"normalize": ["site"]}) == {"raw_inputs"}
    assert rules(policy={"models": ["cnn4"]}) == {"models"}
    assert rules(policy={"modules": {"mine": "a" * 64}}, imports="other") == {"modules"}


@pytest.mark.parametrize(
    ("method", "ranges", "refused"),
    [
        ("fedper", {"fedper": {}}, False),
        ("fedavg", {"fedper": {}}, True),
        ("fedavg + proximal", {"fedavg": {}}, True),
        ("fedprox", {"fedprox": {}}, False),  # a recipe permits its parts
        ("fedprox(mu=0.3)", {"fedprox": {"mu": [0.0, 0.1]}}, True),
        ("fedprox", {"fedprox": {"mu": [0.0, 0.1]}}, False),
        ("fedprox(mu=20.0)", {"fedprox": {"mu": [0.0, 30.0]}}, False),  # in place of the usual
        ("fedper", {"fedper": {"lr": [0.01, 0.1]}}, False),  # the default counts
        ("fedper", {"fedper": {"lr": [0.06, 0.1]}}, True),
        ("fedper(lr=0.07)", {"fedper": {"lr": [0.06, 0.1]}}, False),
        ("fedper", {"fedper": {"optimizer": ["adam", "sgd"]}}, False),
        ("fedper", {"fedper": {"optimizer": "adam"}}, True),
        ("fedper", {"fedper": {"rounds": [1, 10]}}, True),
        ("fedper", {"fedper": {"nothing": 1}}, True),
        ("fedrep", {"fedrep": {"head_epochs": 4}}, False),
    ],
)
def test_methods_and_ranges(method: str, ranges: dict[str, Any], refused: bool) -> None:
    assert rules(policy={"methods": ranges}, method=method) == ({"methods"} if refused else set())


def test_what_a_part_of_ones_own_declares() -> None:
    @dataclass(frozen=True)
    class Declares(Term):
        reveals: ClassVar[tuple[str, ...]] = ("class_counts",)

    @dataclass(frozen=True)
    class Silent(Term):
        pass

    run, rare = RunConfig.checked(PERMITTED), replace(SITE, smallest_class=1)
    fedavg = parse_method("fedavg(batch_size=10, drop_last=true)")

    def names(term: Term) -> set[str]:
        return {r.rule for r in refusals(Policy.checked(), run, rare, fedavg + term)}

    assert names(Declares()) == {"class_counts"}
    assert names(Silent()) == {"unknown"}


def test_a_network_that_an_import_registered_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models._entries, "mine", lambda shape, classes: None)
    monkeypatch.setitem(models._squashed, "mine", "mine")
    assert "mine" in models
    assert rules(model="mine") == {"unknown"}


def test_settings_that_cannot_be_read_are_refused() -> None:
    assert rules(method="fedavg(lr=fast)") == {"settings"}
    assert rules(method="fedavg(opt=1)") == {"settings"}


@pytest.mark.parametrize(
    "keys",
    [
        {"method": "fedavg(lr=1e999)"},
        {"method": "fedavg(weight_decay=1e999)"},
        {"decay": 1e300, "rounds": 1000},
        {"decay": 1e-300, "rounds": 1000},
        {"augment": "crop(pad='x')"},
        {"augment": "crop(pad=1e999)"},
        {"model": "mlp(hidden=[" + "9" * 5000 + "])"},
        {"split": "merged(train="},
        {"rounds": 100_000},
    ],
)
def test_strange_values_are_refused_and_break_nothing(keys: dict[str, Any]) -> None:
    assert judged(IMAGES, **keys)


def test_code_of_the_runs_own() -> None:
    run = RunConfig.checked({"imports": "folder/mine.py,package.more", "model": "nets.py:Net(3)"})
    assert modules_of(run) == ["mine", "package.more", "nets"]


def test_sentences_hold_none_of_the_sites_numbers() -> None:
    """They go to the server. 137 rows, 7 of a class and 9 in the test are in no setting."""
    facts = replace(SITE, rows=137, smallest_class=7, test_rows=9)
    keys = {"method": "fedpac", "drop_last": False, "batch_size": 33}
    listed = judged(
        facts, {"least_rows": 500, "least_class_rows": 50, "least_test_rows": 50}, **keys
    )
    assert {r.rule for r in listed} >= {"few_rows", "small_batches", "class_means", "few_test_rows"}
    for refusal in listed:
        assert not {"137", "7", "9"} & set(str(refusal).replace(".", " ").split())
        assert len(str(refusal)) <= 300
    assert any("137" in refusal.in_full() for refusal in listed)


def test_usual_ranges_are_of_settings_that_exist_and_hold_their_defaults() -> None:
    for (part, key), (least, most) in USUAL.items():
        assert least <= getattr(register[part](), key) <= most


@pytest.mark.parametrize("name", list(register))
def test_defaults_of_our_methods_are_usual(name: str) -> None:
    entry: Any = register[name]()
    expression = f"fedavg + {name}" if not hasattr(entry, "opt") else name
    assert not {"odd_settings", "unknown", "settings", "small_moves"} & rules(method=expression)


NUMBERS = replace(
    SITE,
    smallest_class=142,
    classes=1,
    targets="numbers",
    target_means=(150.0,),
    target_deviations=(70.0,),
)
RARE = replace(SITE, smallest_class=3)


def test_ordinary_tasks_are_permitted() -> None:
    assert not judged(task="classification(smoothing=0.1, weights=[1, 4])")
    assert not judged(RARE, task="binary", metrics="auroc")
    assert not judged(NUMBERS, task="regression(mean=[140], std=[60])")


@pytest.mark.parametrize(
    ("rule", "facts", "task"),
    [
        ("class_weights", RARE, "classification(weights=[1, 4])"),
        ("some_rows", SITE, "binary(weights=[1e-9, 1])"),
        ("large_moves", NUMBERS, "regression(mean=[150], std=[0.001])"),
        ("large_moves", NUMBERS, "regression(mean=[1e9], std=[70])"),
        ("large_moves", NUMBERS, "regression(normalize=false)"),
        ("unknown", SITE, "leaking"),
    ],
)
def test_tasks_that_make_single_rows_count(rule: str, facts: SiteFacts, task: str) -> None:
    assert rules(facts, task=task) == {rule}
