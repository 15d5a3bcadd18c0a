"""What a proposal would do here: facts, policy, and the form of what leaves, in an own process.

The gate and `fedloom deploy approve` start it. It may read the site's data, and it runs code that
the federation brings only where that was agreed to (`with_app`).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.deploy.gate.confined import OutOfBounds, confined, run_confined
from fedloom.deploy.gate.form import Assessment, Objection

if TYPE_CHECKING:
    from fedloom.core.term import Term
    from fedloom.deploy.settings import Settings
    from fedloom.deploy.site.config import SiteConfig


def assess_elsewhere(file: Path, digest: str, with_app: bool) -> Assessment:
    """The assessment of a stored proposal, by a process of its own."""
    words = [digest, *(["--with-app"] if with_app else [])]
    try:
        return run_confined("fedloom.deploy.gate.assess", file, words, Assessment)
    except OutOfBounds as e:
        told = "judging it takes more time or memory than this site gives; choose a smaller network"
        return Assessment(refusals=(Objection(rule="judging", sentence=told, in_full=str(e)),))


def assess(file: Path, digest: str, with_app: bool, scratch: Path) -> Assessment:
    """In this process; `scratch` is a folder for the app's files."""
    from fedloom.deploy.consent.proposal import Proposals
    from fedloom.deploy.site.config import SiteConfig
    from fedloom.policy import modules_of

    config = SiteConfig.read(file)
    stored = Proposals(config.state).read(digest)
    if modules_of(stored.settings.run) and not with_app:
        return Assessment(needs_app=True)
    if with_app:
        stored.app.unpack(scratch)
        sys.path.insert(0, str(scratch))  # as Flower does
    return assess_settings(config, stored.settings)


def assess_settings(config: SiteConfig, settings: Settings) -> Assessment:
    """What settings would do at a site; the code that they import may run."""
    from fedloom.deploy.gate.decide import objections
    from fedloom.deploy.gate.derive import form_of
    from fedloom.deploy.site.client import SiteData
    from fedloom.models.size import TooLarge, counted
    from fedloom.policy import Refusal, byte_refusals, limits, refusals
    from fedloom.policy.network_size import RULE
    from fedloom.policy.training import numbers_used

    policy = config.policy
    # First what needs no data: images would be read in the size that the run names.
    if refused := [r for r in limits(policy, settings.run) if not policy.allows(r.rule)]:
        return Assessment(refusals=objections(refused))
    site = SiteData(config, settings)
    if refused := refusals(policy, settings.run, site.facts()):
        return Assessment(refusals=objections(refused))
    try:
        with counted(policy.most_parameters):
            experiment = site.experiment()
    except TooLarge as e:
        return Assessment(refusals=objections([Refusal(RULE, str(e))]))
    form = form_of(experiment)
    too_much = byte_refusals(policy, form.bytes_of_tensors, form.bytes_in_all)
    return Assessment(
        refusals=objections(too_much),
        revelations=_revelations(experiment.program.method.parts),
        training=numbers_used(experiment.program.method),
        hello=site.hello(),
        rows=len(site.source),
        form=form,
    )


def _revelations(parts: Iterable[Term]) -> tuple[str, ...]:
    """Sentences on what a method declares to send beside a trained model."""
    from fedloom.core.revelations import REVELATIONS, revealed_by

    declared = [revealed_by(part) for part in parts]
    names = dict.fromkeys(name for of in declared for name in (("unknown",) if of is None else of))
    return tuple(REVELATIONS[name] for name in names)


def main() -> None:
    """`python -m fedloom.deploy.gate.assess SITE.TOML DIGEST [--with-app] --result FILE`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("site", type=Path)
    parser.add_argument("digest")
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--with-app", action="store_true")
    words = parser.parse_args()
    with confined(words.site), tempfile.TemporaryDirectory(prefix="fedloom-") as scratch:
        done = assess(words.site, words.digest, words.with_app, Path(scratch))
        words.result.write_text(done.model_dump_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
