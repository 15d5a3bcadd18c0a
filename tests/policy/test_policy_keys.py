"""Every setting of a run and of a deployment is classified: a new key cannot be forgotten."""

from __future__ import annotations

import re
from pathlib import Path

from fedloom.core.revelations import REVELATIONS
from fedloom.deploy.settings import AT_THE_SITES, Settings
from fedloom.policy import Policy
from fedloom.policy.keys import CONCERNS, MAY_CHANGE, concerns_sites
from fedloom.runs.config import RunConfig

LIMITS = {"methods", "models", "modules", "most_rounds", "most_steps", "most_image_size"}
LIMITS |= {"most_experiments", "most_parameters", "least_noise", "most_epsilon", "most_delta"}
PAGE = Path(__file__).parents[2] / "docs" / "policy.md"


def test_every_key_has_a_class() -> None:
    keys = {*RunConfig.model_fields, *Settings.model_fields} - {"run"}
    missing = keys - set(CONCERNS)
    assert not missing, f"decide in policy/keys.py whether a site cares about {sorted(missing)}"
    assert set(CONCERNS) == keys


def test_what_a_deployment_refuses_is_not_for_sites() -> None:
    assert not any(concerns_sites(key) for key in (*AT_THE_SITES, "engine"))


def test_a_key_that_nobody_knows_concerns_sites() -> None:
    assert concerns_sites("a_new_key")


def test_judged_keys_name_their_rules() -> None:
    rules = LIMITS | set(REVELATIONS)
    for key, (concern, why) in CONCERNS.items():
        named = set(re.findall(r"[a-z_]+", why)) & rules
        assert bool(named) == (concern == "judged"), key


def test_only_harmless_changes_keep_states() -> None:
    assert set(MAY_CHANGE) == {"rounds", "sites", "min_clients", "lost_state"}


def test_the_page_tells_of_every_key_and_revelation() -> None:
    text = PAGE.read_text(encoding="utf-8")
    words = set(re.findall(r"`([a-z_0-9]+)`", text))
    assert not set(CONCERNS) - words
    assert not set(Policy.model_fields) - words
    for name, sentence in REVELATIONS.items():
        assert f"| `{name}` | {sentence} |" in text, name
    for key, (concern, why) in CONCERNS.items():
        assert f"| `{key}` | {concern} | {why} |" in text, key
