"""The table `[policy]` as a new site gets it: every key with its default, as comments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from textwrap import wrap

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
