"""The table `[policy]` as text: as a new site gets it, with the defaults as comments, or stated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import wrap
from typing import Any

from fedloom.policy.policy import Policy

HEADER = """
# ---- What this site permits; docs/policy.md of fedloom explains it. These are the defaults: to
# change one, take the "# " off its line and off [policy]. Keys of the site stand above the table.
# [policy]
"""
EXAMPLE = """
# The methods that are permitted, with ranges of their settings; without such tables, any:
# [policy.methods.fedper]
# lr = [0.005, 0.1]
"""


def commented_table() -> str:
    """TOML that changes nothing until somebody takes comment signs away."""
    defaults = Policy.checked().model_dump()
    lines: list[str] = []
    for name, field in Policy.model_fields.items():
        if isinstance(defaults[name], Mapping):
            continue  # tables of their own
        lines += [f"#   {line}" for line in wrap(f"{name}: {field.description}", 94)]
        lines.append(f"# {name} = {json.dumps(defaults[name])}")
    return "\n".join([HEADER.rstrip(), *lines]) + "\n" + EXAMPLE


def stated_table(policy: Policy) -> str:
    """TOML that states every key of a policy.

    >>> stated_table(Policy.checked(least_rows=70)).splitlines()[1:3]
    ['[policy]', 'approval = "ask"']
    """
    keys = policy.model_dump(mode="json")
    lines = [f"{key} = {_toml(value)}" for key, value in keys.items() if value is not None]
    return "\n".join(["", "[policy]", *lines, ""])


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{json.dumps(k)} = {_toml(v)}' for k, v in value.items())} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value)
