"""A dossier for a data-protection officer: one page and copies of the records it is made from.

From a site's own file it shows what the site recorded; from a run folder what the server or a
simulation recorded of one client.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

from fedloom.audit import AuditError, verify
from fedloom.core.message import Kind, Plan
from fedloom.core.privacy import Privacy, parse_privacy
from fedloom.core.secure.slices import SECURE
from fedloom.deploy.consent.approvals import APPROVED, DECLINED, FORGOTTEN, REVOKED
from fedloom.deploy.consent.proposal import Proposals
from fedloom.deploy.gate.form import ADMITTED, Form, upload_bytes
from fedloom.deploy.operations.missing_lines import check_nothing_is_missing
from fedloom.deploy.site.config import SiteConfig
from fedloom.drawing.figures import plain_table
from fedloom.drawing.html import Html, page_head, tag
from fedloom.errors import BadInput, RunFolderError
from fedloom.files import jsonable, parse_json, read_regular, write_atomic
from fedloom.methods import parse_method, with_run_settings
from fedloom.plain_text import plain
from fedloom.policy.quantities import size_text
from fedloom.record import RoundRecord, Summary
from fedloom.runs.config import RunConfig
from fedloom.runs.folder import RunPaths
from fedloom.runs.journal import read_record, read_records
from fedloom.runs.ledger import Account
from fedloom.runs.stored import read_config
from fedloom.version import __version__

PAGE, RECORDS = "index.html", "records"
DECISIONS = (APPROVED, REVOKED, DECLINED, FORGOTTEN, ADMITTED)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem;
  color: #1b1b1b; background: #fff }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #bbb }
table { border-collapse: collapse; margin: 1rem 0 }
caption { text-align: left; font-weight: 600; padding: .3rem 0 }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid #ddd; font-weight: normal; overflow-wrap: anywhere }
thead th { font-weight: 600 }
.scroll { overflow-x: auto }
.quiet { color: #555 }
@media (prefers-color-scheme: dark) { body { color: #e6e6e6; background: #161616 }
  .quiet { color: #aaa } th, td { border-color: #333 } }
@media print { body { max-width: none; margin: 0 } }
"""


@dataclass
class Dossier:
    """What the page says, section by section, and the files beside it."""

    site: str
    subject: str
    sections: dict[str, list[Html]] = field(default_factory=dict)
    records: dict[str, bytes] = field(default_factory=dict)

    def add(self, section: str, *parts: Html) -> None:
        """More of a section."""
        self.sections.setdefault(section, []).extend(parts)

    def write(self, folder: Path) -> Path:
        """The page, in a new or empty folder."""
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadInput(f"{folder} is not empty; name a new folder by --out")
        (folder / RECORDS).mkdir(mode=0o700, parents=True)
        for name, content in self.records.items():
            write_atomic(folder / RECORDS / name, content)
        write_atomic(folder / PAGE, self._page())
        return folder / PAGE

    def _page(self) -> str:
        rows = [[n, sha256(c).hexdigest(), len(c)] for n, c in sorted(self.records.items())]
        digests = plain_table("digests", "Copies in records/", ["file", "sha256", "bytes"], rows)
        title = f"Dossier of {self.site}"
        at = datetime.now(UTC).isoformat(timespec="seconds")
        head = page_head(title, _STYLE, "base-uri 'none'")
        sections = [
            tag("section", tag("h2", name), *parts) for name, parts in self.sections.items()
        ]
        body = tag(
            "body",
            tag("h1", title),
            tag("p", f"{self.subject}. Made {at} by fedloom {__version__}.", class_="quiet"),
            *sections,
            tag("section", tag("h2", "Digests"), digests),
        )
        return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def dossier_of_site(file: Path, experiment: str | None = None) -> Dossier:
    """What a site's own records say, of one experiment or of all."""
    config = SiteConfig.read(file)
    about = "all experiments" if experiment is None else f"experiment {experiment}"
    dossier = Dossier(config.name, f"What the site recorded of {about}")
    dossier.records["site.toml"] = read_regular(file)
    lines = _audit_lines(config, dossier)
    if experiment is not None:
        lines = [line for line in lines if line.get("experiment") in (None, experiment)]
    sent = [line for line in lines if line["event"] == "sent"]
    received = [line for line in lines if line["event"] == "received"]
    dossier.add("What ran", _runs_table(received or sent))
    dossier.add("What left", *_sent_tables(sent))
    _add_proposals(dossier, config, lines)
    dossier.add("Noise", *_noise_of_site(lines, sent))
    refused = [line for line in lines if line["event"] in ("refused", "waiting")]
    dossier.add("What was refused", _refusals_table(refused))
    decided = [line for line in lines if line["event"] in DECISIONS]
    rows = [
        [x["at"], x["event"], x.get("by", "the policy"), plain(x.get("method", "")), _short(_of(x))]
        for x in decided
    ]
    columns = ["UTC", "decision", "by", "method", "proposal"]
    caption = "By the site's operator or policy"
    dossier.add("Decisions", plain_table("decisions", caption, columns, rows))
    policy = config.policy.model_dump()
    rows = [[key, json.dumps(value, default=list)] for key, value in policy.items()]
    dossier.add("The site's rules", plain_table("policy", "[policy]", ["rule", "value"], rows))
    _add_cards(dossier, config, experiment)
    _add_limits(dossier, "the site's gate, which is outside the process that runs the method")
    return dossier


def dossier_of_run(path: Path, site: str) -> Dossier:
    """What a run folder says of one client, by its site's name or its number."""
    run = path if RunPaths(path).config.exists() else path / "run"
    config, paths = read_config(run), RunPaths(run)
    cid = _client(run, site)
    dossier = Dossier(site, f"What the run in {path.name} recorded of client {cid}")
    settings = {key: value for key, value in config.model_dump().items() if value is not None}
    dossier.records["config.json"] = read_regular(paths.config)
    dossier.records["versions.json"] = read_regular(paths.versions)
    rows = [[key, plain(json.dumps(value))] for key, value in settings.items()]
    dossier.add("What ran", plain_table("settings", "Settings", ["key", "value"], rows))
    account = Account.read(paths.ledger)
    _add_account(dossier, account, cid)
    rounds = read_records(paths.metrics, RoundRecord)
    dossier.add("Noise", *_noise(config.privacy, rounds, cid))
    absent = [[r.round, plain(r.absent[cid])] for r in rounds if cid in r.absent]
    table = plain_table("absent", "Rounds without this client", ["round", "why"], absent)
    dossier.add("What was refused", table)
    _add_run_card(dossier, config, paths, rounds, cid)
    _add_limits(dossier, "the server, or by the machine that simulated all clients")
    return dossier


def _noise(setting: str | None, rounds: Sequence[RoundRecord], cid: int) -> list[Html]:
    """What differential privacy says of this client, if the run had it."""
    if setting is None:
        return [tag("p", "None: what left is as the method made it.")]
    privacy, told, rows = parse_privacy(setting), 0, list[list[object]]()
    for record in rounds:
        if record.privacy is None:
            continue
        releases = (record.privacy.mechanisms, record.privacy.repeated)
        if more := sum(by_client.get(cid, 0) for by_client in releases):
            told += more
            rows.append([record.round, record.kind, more, f"{privacy.epsilon_after(told):.4g}"])
    columns = ["round", "", "releases", "epsilon so far"]
    return [
        tag(
            "p",
            f"{plain(setting)}: it hides {privacy.hides}. After {told} releases with noise, epsilon"
            f" is {privacy.epsilon_after(told):.4g} at delta {privacy.delta:g}, towards whoever"
            " sees single uploads. Scores are not covered by it.",
        ),
        plain_table("noise", "Release by release", columns, rows),
    ]


def _noise_of_site(
    lines: Sequence[Mapping[str, Any]], sent: Sequence[Mapping[str, Any]]
) -> list[Html]:
    """What the answers that left have told, by the site's own count of them."""
    agreed = [x for x in lines if x["event"] in (APPROVED, ADMITTED)]
    settings = {_of(x): x["settings"] for x in agreed if isinstance(x.get("settings"), dict)}
    rows = list[list[object]]()
    for digest in dict.fromkeys(map(_of, sent)):
        setting = settings.get(digest, {}).get("privacy")
        if setting is None:
            continue
        left = {line.get("sha256"): line for line in sent if _of(line) == digest and "step" in line}
        worth: tuple[object, ...]
        try:
            privacy = parse_privacy(str(setting))
            told = _releases(privacy, settings[digest], left.values())
            worth = (told, f"{privacy.epsilon_after(told):.4g}", f"{privacy.delta:g}")
        except (BadInput, LookupError, ValueError) as e:  # of code that is not here, or a bad line
            worth = (f"cannot be counted: {plain(e)}", "", "")
        rows.append([_short(digest), plain(setting), len(left), *worth])
    if not rows:
        return [tag("p", "None: what left is as the method made it.")]
    columns = ["proposal", "privacy", "answers", "releases", "epsilon", "delta"]
    return [
        tag(
            "p",
            "Epsilon is towards whoever sees this site's answers, as the server does. Runs over"
            " the same rows add up. Scores are not covered by it.",
        ),
        plain_table("noise", "Answers that left, each with noise on it", columns, rows),
    ]


def _releases(
    privacy: Privacy, settings: Mapping[str, Any], left: Iterable[Mapping[str, Any]]
) -> int:
    """In these answers. How many training rows the site had does not count in: whatever the number
    was, it is not more."""
    run = {key: settings.get(key) for key in RunConfig.model_fields}
    method = with_run_settings(parse_method(str(run["method"])), run)
    plans = [_plan(line) for line in left if line.get("task") == "client"]
    counted = [plan for plan in plans if plan.part != SECURE]
    return sum(privacy.mechanisms(method, plan, None) for plan in counted)


def _plan(line: Mapping[str, Any]) -> Plan:
    """Of an answer that left."""
    kind, _, owner = str(line["step"]).partition(" ")
    return Plan(int(line["round"]), cast(Kind, kind), owner)


def _audit_lines(config: SiteConfig, dossier: Dossier) -> list[dict[str, Any]]:
    """The site's audit log, with what verifying it says; and a copy of all records."""
    log = config.state / "audit.jsonl"
    if not log.is_file():
        raise BadInput(f"{log} does not exist: nothing was received or sent at this site yet")
    try:
        checked = verify(log)
        check_nothing_is_missing(config.state)
        verdict = f"{checked.lines} lines, unbroken; the last has sha256 {checked.last}"
    except (AuditError, BadInput) as e:
        verdict = f"BROKEN: {e}"
    dossier.add("The record itself", tag("p", f"Audit log: {verdict}."))
    for name in ("audit.jsonl", "approvals.jsonl"):
        if (config.state / name).is_file():
            dossier.records[name] = read_regular(config.state / name)
    lines = []
    for text in dossier.records["audit.jsonl"].splitlines():
        try:
            line = parse_json(text)
        except ValueError:
            continue
        if isinstance(line, dict) and "event" in line and "at" in line:
            lines.append(line)
    return lines


def _runs_table(lines: Iterable[Mapping[str, Any]]) -> Html:
    runs: dict[tuple[str, ...], list[str]] = {}
    for line in lines:
        key = tuple(str(line.get(k, "")) for k in ("experiment", "method", "proposal", "app"))
        runs.setdefault(key, []).append(line["at"])
    rows = [
        [experiment, plain(method), _short(proposal), _short(app), len(at), min(at), max(at)]
        for (experiment, method, proposal, app), at in runs.items()
    ]
    columns = ["experiment", "method", "proposal", "app sha256", "messages", "first", "last"]
    return plain_table("runs", "Runs that were let in (UTC)", columns, rows)


def _sent_tables(sent: Sequence[Mapping[str, Any]]) -> list[Html]:
    messages, nbytes = Counter[str](), Counter[str]()
    for line in sent:
        messages[str(line.get("experiment", ""))] += 1
        nbytes[str(line.get("experiment", ""))] += int(line.get("bytes", 0))
    rows = [[name, messages[name], nbytes[name], size_text(nbytes[name])] for name in messages]
    columns = ["experiment", "messages", "bytes", ""]
    keys = ("at", "experiment", "task", "round", "bytes", "sha256")
    single = [[_short(str(line.get(key, ""))) for key in keys] for line in sent]
    heads = ["UTC", "experiment", "task", "round", "bytes", "sha256"]
    return [
        plain_table("sent", "By experiment", columns, rows),
        tag(
            "details",
            tag("summary", "Every message"),
            plain_table("messages", "In the order of the audit log", heads, single),
        ),
    ]


def _refusals_table(refused: Iterable[Mapping[str, Any]]) -> Html:
    rows = [
        [x["at"], x["event"], x.get("experiment", ""), x.get("rule", ""), plain(x.get("sentence"))]
        for x in refused
    ]
    columns = ["UTC", "event", "experiment", "rule", "why"]
    return plain_table("refused", "Runs and answers that did not pass", columns, rows)


def _of(line: Mapping[str, Any]) -> str:
    """The proposal that a line is about."""
    return str(line.get("proposal") or line.get("digest") or "")


def _add_proposals(
    dossier: Dossier, config: SiteConfig, lines: Sequence[Mapping[str, Any]]
) -> None:
    """Settings and tensors of every proposal that ran or was decided on; and its own file."""
    described = {_of(x): x for x in lines if x["event"] in (APPROVED, ADMITTED)}
    proposals = Proposals(config.state)
    of_interest = ("received", "sent", *DECISIONS)
    for digest in dict.fromkeys(_of(x) for x in lines if x["event"] in of_interest):
        settings = described.get(digest, {}).get("settings")
        for suffix in (".json", ".fab"):
            file = proposals.folder / f"{digest}{suffix}"
            if _DIGEST.fullmatch(digest) and file.is_file() and not file.is_symlink():
                dossier.records[f"proposal-{digest[:16]}{suffix}"] = read_regular(file)
        if settings is None:  # a line of an earlier version
            with suppress(BadInput):
                settings = proposals.read(digest).proposal.settings
        if isinstance(settings, dict):
            rows = [[plain(key), plain(json.dumps(value))] for key, value in settings.items()]
            caption = f"Settings of proposal {_short(digest)}"
            table = plain_table(f"settings-{_short(digest)}", caption, ["key", "value"], rows)
            dossier.add("What ran", tag("details", tag("summary", caption), table))
        else:
            told = f"The settings of proposal {_short(digest)} are not on record here."
            dossier.add("What ran", tag("p", told))
        if digest in described:
            _add_form(dossier, digest, described[digest].get("form"))


def _add_form(dossier: Dossier, digest: str, written: Any) -> None:
    """Tensors that the gate lets out, and no others."""
    try:
        form = Form.model_validate(written)
    except ValueError:
        dossier.add("What left", tag("p", f"The form of {_short(digest)} cannot be read."))
        return
    rows = [
        [
            plain(step.partition(" ")[2]),
            plain(f"{name}/{key}"),
            "x".join(map(str, t.shape)),
            t.dtype,
            str(t.bytes),
        ]
        for step, uploads in form.uploads.items()
        for name, tree in max(uploads, key=upload_bytes, default={}).items()
        for key, t in tree.items()
    ]
    caption = f"Tensors of one answer under proposal {_short(digest)}, checked by the gate"
    columns = ["step", "tensor", "shape", "type", "bytes"]
    dossier.add("What left", plain_table(f"form-{_short(digest)}", caption, columns, rows))
    beside = "; ".join(f"{model}: {', '.join(names)}" for model, names in form.scores.items())
    told = f"Beside them: number of training rows, mean loss, scores ({plain(beside)}), digests."
    dossier.add("What left", tag("p", told, class_="quiet"))


def _add_run_card(
    dossier: Dossier, config: RunConfig, paths: RunPaths, rounds: Sequence[RoundRecord], cid: int
) -> None:
    """What the shared model is, how it was made and how well it does, in general and here."""
    claimed = next((r.rows[cid] for r in reversed(rounds) if cid in r.rows), None)
    card: dict[str, Any] = {
        "what it is": "the part of the clients' models that is shared; each client has the rest",
        "method": config.method,
        "network": config.model,
        "task": config.task or "classification",
        "rounds": len({r.round for r in rounds if r.kind == "train"}),
        "rounds with this client": sum(1 for r in rounds if r.kind == "train" and cid in r.rows),
        "training rows that this client stated": claimed,
        "what it is not": "checked for another use than the clients' own rows",
    }
    if paths.summary.exists():
        summary = read_record(paths.summary, Summary)
        dossier.records["summary.json"] = read_regular(paths.summary)
        card |= {
            "method": summary.method,
            "clients": summary.clients,
            f"{summary.metric} over the clients ({summary.protocol})": round(summary.value, 4),
            "sha256 of the final state": summary.state_sha256,
        }
    for score in reversed([s for r in rounds for s in r.scores if cid in s.clients]):
        place = score.clients.index(cid)
        card[f"scores of this client, {score.at}, on {score.rows[place]} rows"] = {
            name: values[place] for name, values in score.metrics.items()
        }
        break
    dossier.records["model-card.json"] = json.dumps(jsonable(card), indent=1).encode()
    rows = [[key, plain(value)] for key, value in card.items()]
    ended = "As the run ended" if paths.summary.exists() else "The run has not ended"
    dossier.add("The model", plain_table("model", f"Model card. {ended}.", ["", ""], rows))


def _add_cards(dossier: Dossier, config: SiteConfig, experiment: str | None) -> None:
    pattern = f"{experiment or '*'}/model/card.json"
    for file in sorted(config.state.glob(pattern)):
        name, content = file.parent.parent.name, read_regular(file)
        dossier.records[f"card-{name}.json"] = content
        try:
            card = dict(parse_json(content))
        except (ValueError, TypeError):
            dossier.add("The model", tag("p", f"The card of {name} cannot be read."))
            continue
        shown = ("method", "network", "round", "training_rows", "class_names", "state_sha256")
        rows = [[key, plain(card.get(key))] for key in shown]
        caption = f"The site's own model of {name}, which stays here"
        dossier.add("The model", plain_table(f"card-{name}", caption, ["", ""], rows))


def _add_account(dossier: Dossier, account: Account, cid: int) -> None:
    shared = Counter[int]()
    for step in account.steps:
        shared.update(group.number for group in step.shared if cid in group.clients)
    messages, nbytes = account.clients().get(cid, (0, 0))
    dossier.add("What left", tag("p", f"{messages} messages with {size_text(nbytes)} of tensors."))
    for number, times in sorted(shared.items()):
        rows = [
            [plain(t.name), "x".join(map(str, t.shape)), t.dtype, t.nbytes]
            for t in account.sets[number].tensors
        ]
        caption = f"In {times} messages"
        columns = ["tensor", "shape", "type", "bytes"]
        dossier.add("What left", plain_table(f"set-{number}", caption, columns, rows))
        beside = ", ".join(plain(name) for name in account.sets[number].numbers)
        dossier.add("What left", tag("p", f"Beside them: {beside}.", class_="quiet"))
    own = [
        {"step": s.step, "round": s.round, "sets": [g.number for g in s.shared if cid in g.clients]}
        for s in account.steps
    ]
    sets = [s for s in account.as_json()["sets"] if s["number"] in shared]
    dossier.records["ledger-of-client.json"] = json.dumps(
        {"client": cid, "sets": sets, "steps": own}, indent=1
    ).encode()


def _client(run: Path, site: str) -> int:
    """The number of a client: as it stands, or of a site's or user's name."""
    names: dict[str, int] = {}
    try:
        for file in (run.parent / "sites.json", run / "partition.json"):
            if file.is_file():
                saved = parse_json(read_regular(file))
                listed = saved.get("client_names", [])
                names |= saved.get("sites", {}) | {name: i for i, name in enumerate(listed)}
    except (OSError, ValueError, AttributeError, TypeError):
        raise RunFolderError(f"the names of the clients in {run} cannot be read") from None
    if site in names and isinstance(names[site], int):
        return names[site]
    if site.isdecimal():
        return int(site)
    known = ", ".join(map(str, names)) or "numbers only"
    raise BadInput(f"the run in {run} has no site {plain(site)!r}; there are: {plain(known)}")


def _add_limits(dossier: Dossier, author: str) -> None:
    dossier.add(
        "What this does not show",
        tag(
            "p",
            f"These records were written by {author}. Weights can tell something about the rows"
            " they come from, unless noise hides it, and docs/policy.md says what each method"
            " reveals. Whoever rules the machine could have rewritten the records; compare the"
            " audit log's last sha256 with one that was noted down elsewhere.",
        ),
    )


def _short(text: str) -> str:
    """Of a digest its beginning, by which it is found in the records."""
    return text[:16] if len(text) == 64 else text
