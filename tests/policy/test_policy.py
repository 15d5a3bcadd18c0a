"""The table [policy] of a site's file."""

from __future__ import annotations

import tomllib
from datetime import datetime, time
from pathlib import Path
from typing import Any

import pytest

from fedloom.deploy.site.config import SiteConfig
from fedloom.errors import BadInput
from fedloom.policy import (
    Policy,
    app_refusals,
    byte_refusals,
    experiment_refusals,
    module_refusals,
    refused_now,
)
from fedloom.policy.quantities import Hours, size, size_text
from fedloom.policy.table import commented_table

SHA, OTHER = "a" * 64, "b" * 64


def written(folder: Path, text: str) -> Path:
    file = folder / "site.toml"
    file.write_text(f'name = "a"\ndata = "rows.csv"\nstate = "kept"\n{text}')
    return file


def test_a_site_without_a_policy_has_the_safe_one(tmp_path: Path) -> None:
    config = SiteConfig.read(written(tmp_path, ""))
    assert config.policy == Policy.checked()
    assert (config.policy.approval, config.policy.allow) == ("ask", ())


def test_a_policy_as_it_is_written(tmp_path: Path) -> None:
    text = """
[policy]
least_batch = 16
most_bytes = "2 GB"
allow = ["class_counts"]

[policy.methods.fedper]
lr = [0.001, 0.1]
optimizer = ["sgd", "adam"]
"""
    policy = SiteConfig.read(written(tmp_path, text)).policy
    assert policy == Policy.read(tmp_path / "site.toml")
    assert (policy.least_batch, policy.most_bytes) == (16, 2 * 10**9)
    assert policy.methods["fedper"]["lr"] == (0.001, 0.1)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("least_bach = 4", "unknown key 'least_bach' .* did you mean 'least_batch'"),
        ('allow = ["row_mean"]', "did you mean 'row_means'"),
        ('hours = "22-06"', "write '22:00-06:00'"),
        ('most_bytes = "many"', "write bytes, or text such as '200 MB'"),
        ('apps = ["abc"]', "apps = 'abc' will not do"),
        ('approval = "never"', "approval = 'never' will not do"),
        ("least_rows = 0", "least_rows = 0 will not do"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said(line: str, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=sentence):
        SiteConfig.read(written(tmp_path, f"[policy]\n{line}\n"))


def test_a_policy_that_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"write \[policy\]"):
        SiteConfig.read(written(tmp_path, 'policy = "strict"\n'))


def test_every_key_is_described() -> None:
    assert all(field.description for field in Policy.model_fields.values())


def test_a_new_sites_table_has_every_key_and_changes_nothing_until_uncommented() -> None:
    text = commented_table()
    assert tomllib.loads(text) == {}
    bare = "\n".join(line.removeprefix("# ") for line in text.splitlines() if _is_toml(line))
    table = tomllib.loads(bare)["policy"]
    assert Policy.checked(**{k: v for k, v in table.items() if k != "methods"}) == Policy.checked()
    assert set(table) == set(Policy.model_fields) - {"modules"}


def _is_toml(line: str) -> bool:
    return line.startswith("# [") or (" = " in line and not line.startswith("#  "))


def test_hours_over_midnight_and_by_day() -> None:
    night, day = Hours.read("22:00-06:00"), Hours.read("8:30-17:00")
    assert [time(h) in night for h in (21, 22, 0, 5, 6)] == [False, True, True, True, False]
    assert [time(h) in day for h in (8, 9, 17)] == [False, True, False]
    for wrong in ("25:00-26:00", "8:00-8:00"):
        with pytest.raises(BadInput):
            Hours.read(wrong)


@pytest.mark.parametrize(
    ("text", "number"), [("1 KiB", 1024), ("0.5GB", 5 * 10**8), ("7", 7), (12, 12)]
)
def test_sizes(text: Any, number: int) -> None:
    assert size(text) == number
    assert size_text(5 * 10**8) == "500 MB"


@pytest.mark.parametrize("wrong", [True, -1, 1.5, "1 parsec"])
def test_what_is_no_size(wrong: Any) -> None:
    with pytest.raises(BadInput):
        size(wrong)


def test_limits_that_need_more_than_settings() -> None:
    policy = Policy.checked(
        hours="22:00-06:00",
        apps=[SHA],
        modules={"mine": SHA},
        most_bytes_per_round=10,
        most_bytes=100,
        most_experiments=2,
    )
    rules = [
        refused_now(policy, datetime(2026, 1, 1, 12)),
        app_refusals(policy, OTHER),
        module_refusals(policy, {"mine": OTHER}),
        module_refusals(policy, {"other": SHA}),
        byte_refusals(policy, 11, 11),
        byte_refusals(policy, 10, 101),
        experiment_refusals(policy, 2),
    ]
    names = [[refusal.rule for refusal in listed] for listed in rules]
    assert names == [
        ["hours"],
        ["apps"],
        ["modules"],
        ["modules"],
        ["most_bytes_per_round"],
        ["most_bytes"],
        ["most_experiments"],
    ]
    assert not refused_now(policy, datetime(2026, 1, 1, 23))
    assert not app_refusals(policy, SHA)
    assert not module_refusals(policy, {"mine": SHA})
    assert not byte_refusals(policy, 10, 100)
    assert not experiment_refusals(policy, 1)
