"""A proposal in plain words: what would run here, and what would leave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fedloom.deploy.consent.proposal import Stored
from fedloom.deploy.gate.attempted import Attempt
from fedloom.deploy.gate.form import OVERHEAD, Assessment, Form, Objection, Upload, upload_bytes
from fedloom.deploy.project.new import APP, PACKAGE
from fedloom.deploy.settings import Settings
from fedloom.deploy.site.config import SiteConfig
from fedloom.policy.quantities import size_text
from fedloom.runs.config import RunConfig

OURS = {
    "federation/__init__.py": PACKAGE,
    "federation/client_app.py": APP.format(what="client"),
    "federation/server_app.py": APP.format(what="server"),
}
"""Files that `fedloom deploy init` writes: two imports."""
ENTRY = "federation.client_app:app"
"""What the project of `fedloom deploy init` has Flower start at a site."""
NOT_OURS = ", which is not what `fedloom deploy init` writes: find out what it does"
NAMED_FIRST = ("method", "model", "rounds", "epochs", "batch_size", "lr", "participation")


def what_would_run(stored: Stored, site: SiteConfig) -> Iterator[str]:
    """Lines on the code and the settings; nothing of the app has run for them."""
    proposal, settings = stored.proposal, stored.proposal.settings
    yield f"{proposal.site} is asked to take part in {proposal.experiment!r}"
    yield f"  proposal  {proposal.digest}"
    yield f"  server    {site.superlink}"
    yield ""
    yield "What would run here"
    yield f"  app       sha256 {proposal.app}"
    yield f"  starts    {stored.app.entry}{'' if stored.app.entry == ENTRY else NOT_OURS}"
    for file in proposal.files:
        own = stored.app.sources[file.path] == OURS.get(file.path, "").encode()
        note = "fedloom's own" if own else _note(file.path)
        yield f"    {file.path}  {file.bytes} bytes  sha256 {file.sha256[:12]}  {note}".rstrip()
    for name, digest in proposal.modules.items():
        yield f"  module    {name}, installed here, sha256 {digest[:12]}"
    for name, digest in proposal.weights.items():
        yield f"  weights   {name}, a file of this machine, sha256 {digest[:12]}"
    versions = ", ".join(f"{name} {number}" for name, number in proposal.versions.items())
    yield f"  versions  {versions}"
    for name, value in _chosen(settings, _numbers_used(stored.settings)):
        yield f"  {name:<9} {value}"


def _note(path: str) -> str:
    if path.endswith(".py"):
        return "code of the federation"
    return "" if path == "pyproject.toml" else "a file of the federation"


def _numbers_used(settings: Settings) -> dict[str, str]:
    """What a method trains with, whether the run's settings, its own or the defaults say so; none
    of one whose code is the federation's and has not run."""
    from fedloom.policy.ranges import method_of
    from fedloom.policy.training import numbers_used

    method = method_of(settings.run)
    return {} if method is None else numbers_used(method)


def _chosen(settings: Mapping[str, Any], used: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The settings that matter most, then all that are not the default."""
    for name in NAMED_FIRST:
        value = used.get(name, settings.get(name))
        yield name, "as the federation's code says; see below" if value is None else value
    fields = {**RunConfig.model_fields, **Settings.model_fields}
    for name, value in settings.items():
        default = fields[name].default if name in fields else None
        if name not in NAMED_FIRST and value != default and value not in (None, [], ""):
            yield name, value


def what_would_leave(assessment: Assessment) -> Iterator[str]:
    """Lines on the form of the answers."""
    used = ", ".join(f"{name} {value}" for name, value in assessment.training.items())
    yield f"It would train with {used}"
    yield ""
    yield "What would leave this site"
    hello = assessment.hello or {}
    yield "  once, to introduce itself: " + ", ".join(f"{k} {_short(v)}" for k, v in hello.items())
    form = assessment.form
    if form is None:
        yield "  unknown, and so nothing may leave"
        return
    for step, times in form.steps.items():
        yield from _step(form, step, times)
    scores = "; ".join(f"{model}: {', '.join(names)}" for model, names in form.scores.items())
    yield f"  with it: the number of training rows, the mean loss, and scores of the {scores}"
    yield f"    on these rows of the site: {', '.join(form.splits)}, with their number"
    yield f"  in all {size_text(form.bytes_in_all)} of tensors, if every round is asked for once"
    yield (
        f"  An answer may have {size_text(OVERHEAD)} beside its tensors, for names, numbers and"
        " Flower's headers; `fedloom deploy try` counts them, as the audit log does."
    )
    yield (
        "  The server may ask again for what it was sent already. Another round than these, also in"
        " place of one that was taken back, waits until you approve the proposal once more."
    )
    yield ""
    yield "What that can reveal"
    yield "  What is trained here leaves: weights can tell something about the rows they come from."
    for sentence in assessment.revelations:
        yield f"  {sentence}"


def _step(form: Form, step: str, times: int) -> Iterator[str]:
    kind, _, owner = step.partition(" ")
    often = f"{times} times" if times > 1 else "once"
    of_step = [known for name, known in form.uploads.items() if name.endswith(f" {step}")]
    uploads = [upload for known in of_step for upload in known]
    name = "a round of training" if kind == "train" else f"the {kind} step {owner}"
    if not any(uploads):
        yield f"  {name} ({often}): no tensor"
        return
    largest = max(uploads, key=upload_bytes)
    yield f"  {name} ({often}): {size_text(upload_bytes(largest))} in these tensors"
    yield from _tensors(largest)


def _tensors(upload: Upload) -> Iterator[str]:
    for slice_, tree in upload.items():
        for key, tensor in tree.items():
            yield f"    {slice_}/{key}  {list(tensor.shape)} {tensor.dtype}, {tensor.bytes} bytes"


def refused(objections: Iterable[Objection]) -> Iterator[str]:
    """Lines on what the site's own rules say against it."""
    yield "The policy of this site refuses it"
    for objection in objections:
        yield f"  {objection.in_full}"


def attempted(attempt: Attempt, out: Path | None = None) -> Iterator[str]:
    """Lines on the answers that were computed, each tensor with its smallest and largest value."""
    kept = f"kept in {out} alone, to the last byte" if out else "and nothing was kept"
    yield f"Nothing of this was sent, {kept}."
    yield f"To introduce itself the site would send {attempt.hello_bytes} bytes:"
    for key, value in attempt.hello.items():
        yield f"  {key}: {_short(value)}"
    for step in attempt.steps:
        yield f"In {step.name} it would send {step.bytes} bytes, sha256 {step.sha256}:"
        for t in step.tensors:
            values = "" if t.smallest is None else f", values {t.smallest:.6g} to {t.largest:.6g}"
            yield f"  {t.name}  {list(t.shape)} {t.dtype}, {t.bytes} bytes{values}"
        yield f"  rows: {step.rows}"
        for name, number in step.metrics.items():
            yield f"  {name}: {number:.6g}"
        for score in step.scores:
            yield f"  score of the {score}"
        yield f"  sha256 of the state that stays here: {step.state or 'none, nothing stays'}"
        yield f"  began anew, because that state was lost: {'yes' if step.anew else 'no'}"
    if attempt.later:
        yield (
            "After a round the server also asks for scores of the model that it made of all"
            f" answers, which nobody can compute before: {', '.join(attempt.later)}, on the rows"
            f" {', '.join(attempt.later_splits)}"
        )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else f"{text[:117]}..."
