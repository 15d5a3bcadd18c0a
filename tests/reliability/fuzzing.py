"""Random damage to whatever a stranger may hand over, and a watch over what then happens.

A target makes an input and the call that takes it. Whatever the input, the answer is a result or
one sentence, in time; nothing of it is executed, and nothing outside the folder is written or
removed. `test_fuzz.py` tries some inputs of every target, `benchmarks/fuzz.py` a hundred thousand.
"""

from __future__ import annotations

import copy
import io
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedloom import federate, load, resume, run
from fedloom.core.aggregation import parse_aggregation
from fedloom.core.evaluate import Ask
from fedloom.core.hostile import parse_hostile
from fedloom.core.message import Down, Plan, Up
from fedloom.core.protocol import parse_protocol
from fedloom.core.score import ClientScore
from fedloom.core.task import parse_task
from fedloom.core.tree import State
from fedloom.data import FederatedData, Partition
from fedloom.data.partition.assignment import ClientRows
from fedloom.errors import FedloomError
from fedloom.methods import parse_method
from fedloom.models import build_model
from fedloom.report.page import report
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.client_models import card_of
from fedloom.runs.config import RunConfig
from fedloom.runs.experiment import Experiment
from fedloom.runs.ledger import Account
from fedloom.serving.model import PersonalModel

Input = tuple[Callable[[], object], object]
"""A call, and what is shown of its input where the call does what it must not."""
Target = Callable[[Path], Callable[[random.Random], Input]]
"""Prepares in a folder, which is the working directory, what its inputs are made from."""

CPU_SECONDS, SECONDS = 20, 300
"""After which an input hangs: of work, and of waiting."""
CANARY = "fuzz_canary"
WORDS = ["0", "-1", "9" * 19, "9" * 30, "9" * 5000, "1e308", "1e400", "nan", "true", "none", "''"]
WORDS += ["[", "]", "(", ")", "=", ",", "+", "-", "*", "**2", "[[", "{", "}", "\0", "\ud800", "é"]
WORDS += ["__import__('os')", "lambda: 0", "(" * 300, "../../outside", "/etc/passwd", "#", '"""']
WORDS += [f"__import__('{CANARY}')", f"{CANARY}()", f"{CANARY}.py:x", "\r\n", "\x1b[2J", "|"]
VALUES: list[Any] = [None, True, 0, -1, 10**30, -(2**63), 1.5, float("nan"), "", "x", "../../x"]
VALUES += [[], {}, [[]], [0], ["x"], {"x": 0}, "/dev/zero", "\ud800", [10**9], 2**63, 1e308]
VALUES += [f"{CANARY}()", "x" * 100000, [[[[[[]]]]]], {"../../x": "../../outside/thesis.txt"}]


# ---------------------------------------------------------------------- the watch


class Hangs(BaseException):
    """An input that takes too long."""


class Forbidden(BaseException):
    """An input that executes something, or writes elsewhere; raised where it happens."""


_STARTS = {"os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "subprocess.Popen"}
_STARTS |= {"socket.connect", "pickle.find_class", "os.kill"}
_CHANGES = {"os.rename": 2, "os.remove": 1, "os.rmdir": 1, "os.mkdir": 1, "os.truncate": 1}
_CHANGES |= {"os.symlink": 2, "os.link": 2, "os.chmod": 1, "os.chown": 1, "shutil.rmtree": 1}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Watch:
    """Python's audit events while an input is tried. A hook cannot be taken away again, so there
    is one, which is idle in between."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._installed = False

    @contextmanager
    def over(self, folder: Path) -> Iterator[None]:
        """Only there may something be written."""
        if not self._installed:
            sys.addaudithook(self._heard)
            self._installed = True
        self.folder = folder.resolve()
        try:
            yield
        finally:
            self.folder = None

    def _heard(self, event: str, values: tuple[Any, ...]) -> None:
        folder = self.folder
        if folder is None:
            return
        self.folder = None  # what is done here is not watched
        try:
            if why := self._objection(folder, event, values):
                raise Forbidden(f"{event}: {why}")
        finally:
            self.folder = folder

    def _objection(self, folder: Path, event: str, values: tuple[Any, ...]) -> str | None:
        if event in _STARTS:
            return repr(values)
        if event == "exec" and CANARY in repr((values[0].co_names, values[0].co_consts)):
            return "code of the input"
        if event == "import" and CANARY in str(values[0]):
            return str(values[0])
        if event == "open" and isinstance(values[2], int) and values[2] & _WRITES:
            return self._outside(folder, values[0], -1)
        if event in _CHANGES:
            at = values[-1] if isinstance(values[-1], int) and event != "os.truncate" else -1
            outside = (self._outside(folder, path, at) for path in values[: _CHANGES[event]])
            return next(filter(None, outside), None)
        return None

    @staticmethod
    def _outside(folder: Path, path: Any, at: int) -> str | None:
        if path is None or isinstance(path, int):  # a handle, judged when it was opened
            return None
        base = os.readlink(f"/proc/self/fd/{at}") if at >= 0 else os.getcwd()
        named = os.path.join(base, os.fsdecode(path))
        place = os.path.join(os.path.realpath(os.path.dirname(named)), os.path.basename(named))
        inside = place == "/dev/null" or Path(place).is_relative_to(folder)
        return None if inside else named


watch = Watch()


@contextmanager
def in_time() -> Iterator[None]:
    """Raise `Hangs` in what takes too long."""

    def ring(*_: object) -> None:
        raise Hangs

    timers = {signal.SIGPROF: (signal.ITIMER_PROF, CPU_SECONDS)}
    timers[signal.SIGALRM] = (signal.ITIMER_REAL, SECONDS)
    before = {number: signal.signal(number, ring) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def attempt(call: Callable[[], object], shown: object, folder: Path) -> bool:
    """Was it accepted? Only a sentence may be raised, and soon."""
    try:
        with warnings.catch_warnings(), in_time(), watch.over(folder):
            warnings.simplefilter("ignore")
            call()
    except FedloomError:
        return False
    except BaseException as e:
        raise AssertionError(f"{type(e).__name__}: {e!s:.500} for {shown!r:.3000}") from e
    return True


@contextmanager
def workshop(root: Path) -> Iterator[Path]:
    """A folder to work in, beside one that must stay as it is."""
    outside, inside = root / "outside", root / "a" / "inside"
    outside.mkdir(parents=True)
    (outside / "thesis.txt").write_text("years of work")
    inside.mkdir(parents=True)
    before, cwd = dict(os.environ), os.getcwd()
    os.environ |= {"FEDLOOM_CACHE": str(inside / "cache"), "TMPDIR": str(inside)}
    tempfile.tempdir = None
    os.chdir(inside)
    try:
        yield inside
    finally:
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(before)
        tempfile.tempdir = None
    assert [p.name for p in outside.iterdir()] == ["thesis.txt"]
    assert (outside / "thesis.txt").read_text() == "years of work"
    assert sorted(p.name for p in root.iterdir()) == ["a", "outside"]
    assert [p.name for p in (root / "a").iterdir()] == ["inside"]


# ---------------------------------------------------------------------- damage


class FromBytes(random.Random):
    """Draws what bytes say, and zeros when they are used up. Whoever changes the bytes, as a fuzzer
    does that is led by the code it reaches, changes the input; the same bytes make the same one."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = io.BytesIO(data)

    def getrandbits(self, k: int, /) -> int:
        size = -(-k // 8)
        drawn = int.from_bytes(self._data.read(size).ljust(size, b"\0"), "big")
        return drawn & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(53) / (1 << 53)


def altered_text(rng: random.Random, text: str) -> str:
    """With up to three pieces put in, taken out, replaced or doubled."""
    for _ in range(rng.randint(1, 3)):
        at, end = sorted(rng.choices(range(len(text) + 1), k=2))
        kind = rng.randrange(5)
        if kind == 0:
            text = text[:at] + rng.choice(WORDS) + text[at:]
        elif kind == 1:
            text = text[:at] + text[min(end, at + 8) :]
        elif kind == 2:
            text = text[:at] + rng.choice(WORDS) + text[min(end, at + 8) :]
        elif kind == 3:
            text = text[:at] + chr(rng.randrange(1, 0x250)) + text[at + 1 :]
        else:
            text = text[:end] + text[at:end][:40] + text[end:]
    return text


def altered_bytes(rng: random.Random, data: bytes) -> bytes:
    """With some bytes changed, taken out or doubled, or numbers that are too large."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(changed))
        kind = rng.randrange(4)
        if kind == 0:
            changed[at] = rng.randrange(256)
        elif kind == 1:
            del changed[at : at + rng.choice([1, 4, 100])]
        elif kind == 2:
            changed[at : at + 4] = struct.pack("<i", rng.choice([-1, 2**31 - 1, 0, 10**9]))
        else:
            changed[at:at] = changed[at : at + 50]
        if not changed:
            return b""
    return bytes(changed)


def altered_json(rng: random.Random, value: Any) -> Any:
    """With one node replaced, removed or doubled."""
    value = copy.deepcopy(value)
    node, path = value, []
    while isinstance(node, dict | list) and node and (not path or rng.random() < 0.8):
        keys = list(node) if isinstance(node, dict) else range(len(node))
        path.append((node, key := rng.choice(keys)))
        node = node[key]
    if not path:
        return rng.choice(VALUES)
    holder, key = path[-1]
    if rng.random() < 0.2:
        del holder[key]
    elif rng.random() < 0.1 and isinstance(holder, dict):
        holder[rng.choice(["x", "../x", "clients-000009.states"])] = holder[key]
    else:
        holder[key] = rng.choice(VALUES)
    return value


def put(path: Path, text: str) -> None:
    """Write a text, whatever is in it."""
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


# ---------------------------------------------------------------------- what is said in words

METHODS = ["fedavg + proximal(mu=0.01)", "fedper(lr=0.1)", "fedavg + dbe(kappa=5)", "dualfed"]
METHODS += ["fedrep(head_epochs=2)", "ditto(lam=0.1) + moon(tau=0.5)", "fedbr", "fedcr(beta=1e-3)"]
WORDED: list[tuple[Callable[[str], object], list[str]]] = [
    (parse_method, METHODS),
    (parse_protocol, ["fedpac(moment=received)", "cohort", "fedloom(select=best_val, split=val)"]),
    (parse_task, ["classification", "regression", "multilabel"]),
    (parse_aggregation, ["trimmed_mean(share=0.2)", "krum(share=0.2, keep=1)", "median"]),
    (parse_hostile, ["sign_flip(share=0.2, scale=4)", "collude(size=0.5)", "label_flip"]),
]
MODELS = ["mlp(hidden=[8, 8])", "cnn4", "auto", "mlp(hidden=[4]) | mlp(hidden=[5])", "mlp"]
DIVISIONS = ["dirichlet(alpha=0.1)", "iid", "pathological(classes_per_client=2)", "by_user"]
DIVISIONS += ["quantity(alpha=1)", "dominant(share=0.8)"]
SPLITS = ["merged(train=0.75)", "merged(train=0.6, val=0.2)", "shared_test"]
SHIFTS = ["rotate(step=15)", "none"]


def expressions(folder: Path) -> Callable[[random.Random], Input]:
    """Methods, protocols, tasks, rules and hostile clients."""

    def make(rng: random.Random) -> Input:
        parse, texts = rng.choice(WORDED)
        text = altered_text(rng, rng.choice(texts))
        return lambda: parse(text), text

    return make


def small_source() -> Any:
    """80 pictures of four classes."""
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (80, 1, 8, 8)).astype(np.uint8)
    return load((pixels, rng.integers(0, 4, 80)))


def divided(source: Any, division: str, split: str, shift: str) -> FederatedData:
    """Over four clients."""
    return federate(source, division, 4, 0, split, shift=None if shift == "none" else shift)


def models_and_divisions(folder: Path) -> Callable[[random.Random], Input]:
    """Expressions that are carried out: networks, partitions, splits and shifts."""
    small = small_source()

    def make(rng: random.Random) -> Input:
        if rng.random() < 0.5:
            text = altered_text(rng, rng.choice(MODELS))
            return lambda: build_model(text, (1, 8, 8), 4, seed=0), text
        words = [rng.choice(texts) for texts in (DIVISIONS, SPLITS, SHIFTS)]
        at = rng.randrange(3)
        words[at] = altered_text(rng, words[at])
        return lambda: divided(small, *words), words

    return make


def configurations(folder: Path) -> Callable[[random.Random], Input]:
    """TOML files, and words of the command line."""
    defaults = RunConfig().model_dump().items()
    text = "\n".join(f"{k} = {json.dumps(v)}" for k, v in defaults if v is not None)
    lines = text.splitlines()

    def make(rng: random.Random) -> Input:
        if rng.random() < 0.3:
            words = [altered_text(rng, rng.choice(lines).replace(" = ", "=")) for _ in range(2)]
            return lambda: RunConfig.read(None, words), words
        changed = altered_text(rng, text)
        put(folder / "run.toml", changed)
        return lambda: RunConfig.read(folder / "run.toml"), changed

    return make


# ---------------------------------------------------------------------- files of runs


def partitions(folder: Path) -> Callable[[random.Random], Input]:
    """With the fingerprint made right again."""
    small, file = small_source(), folder / "p.json"
    divided(small, "iid", "merged(train=0.75)", "none").partition.save(file)
    saved = json.loads(file.read_text())

    def make(rng: random.Random) -> Input:
        changed = altered_json(rng, saved)
        with suppress(Exception):  # then it has no right fingerprint
            changed["fingerprint"] = fingerprint(changed)
        text = json.dumps(changed)
        if rng.random() < 0.2:
            text = altered_text(rng, text)
        put(file, text)
        return lambda: federate(small, str(file)), text

    return make


def fingerprint(saved: Any) -> str:
    """The right one of an altered partition, as a stranger would write it."""
    maps = saved["label_maps"]
    return Partition(
        tuple(ClientRows(*(np.array(rows, np.int64) for rows in c)) for c in saved["clients"]),
        {name: np.array(rows, np.int64) for name, rows in saved["shared"].items()},
        None if maps is None else np.array(maps, np.int64),
    ).fingerprint


def stopped_run(folder: Path) -> Path:
    """A run that stopped before its end; with personal parts, so that clients have states too."""
    out = folder / "done"
    settings: Any = {"clients": 4, "partition": "iid", "model": "mlp(hidden=[8])"}
    run("fedper", "digits", rounds=2, out=str(out), checkpoint_every=1, **settings)
    (out / "summary.json").unlink()
    for step in sorted((out / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(step)
    return out


def damaged(rng: random.Random, file: Path, original: bytes) -> None:
    """A file of a run that is still of its format, or is not."""
    if rng.random() < 0.2:
        file.write_bytes(altered_bytes(rng, original))
    elif file.suffix == ".json":
        file.write_text(json.dumps(altered_json(rng, json.loads(original))))
    elif file.suffix == ".jsonl":
        lines = [json.loads(line) for line in original.splitlines()]
        changed = altered_json(rng, lines)
        changed = changed if isinstance(changed, list) else [changed]
        file.write_text("".join(json.dumps(line) + "\n" for line in changed))
    else:
        file.write_bytes(altered_bytes(rng, original))


def checkpoints(folder: Path) -> Callable[[random.Random], Input]:
    """Of every file of one, with all digests made right again."""
    (good,) = (stopped_run(folder) / "checkpoints").iterdir()
    original = {p.name: p.read_bytes() for p in good.iterdir()}
    place = folder / "checkpoints" / good.name
    place.mkdir(parents=True)

    def make(rng: random.Random) -> Input:
        for name, data in original.items():
            (place / name).write_bytes(data)
        name = rng.choice(list(original))
        damaged(rng, place / name, original[name])
        repair(place / "manifest.json")
        shown = (name, (place / name).read_bytes()[:2000])
        return lambda: Checkpoints(place.parent).load_latest(), shown

    return make


def run_folders(folder: Path) -> Callable[[random.Random], Input]:
    """Every file of one, with the manifest of its checkpoint made right again: reported on,
    accounted for and gone on with."""
    done, copied = stopped_run(folder), folder / "run"
    kinds = (".json", ".jsonl", ".safetensors", ".states")
    files = [p.relative_to(done) for p in sorted(done.rglob("*")) if p.suffix in kinds]

    def make(rng: random.Random) -> Input:
        shutil.rmtree(copied, ignore_errors=True)
        shutil.copytree(done, copied)
        file = copied / rng.choice(files)
        damaged(rng, file, file.read_bytes())
        for manifest in copied.glob("checkpoints/*/manifest.json"):
            repair(manifest)
        reads: list[Callable[[], object]] = [
            lambda: Account.read(copied / "ledger.jsonl").as_json(),
            lambda: report([copied], folder / "page.html"),
        ]
        if file.name != "config.json":  # others may ask for a long training
            reads.append(lambda: resume(copied, progress=False))
        return rng.choice(reads), (file, file.read_bytes()[:2000])

    return make


def repair(manifest: Path) -> None:
    """Digests and sizes as they are now, as a stranger would do it."""
    with suppress(ValueError, OSError, AttributeError):
        body = json.loads(manifest.read_bytes())
        files = body.get("files")
        for name, about in files.items() if isinstance(files, dict) else ():
            file = manifest.parent / name
            if isinstance(about, dict) and file.is_file():
                digest = sha256(file.read_bytes()).hexdigest()
                about |= {"size": file.stat().st_size, "sha256": digest}
        body.pop("sha256", None)
        digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
        manifest.write_text(json.dumps({**body, "sha256": digest}))


def saved_model(folder: Path) -> Path:
    """A site's model as it is saved after a run, of digits."""
    data = federate(load("digits"), "iid", 1)
    config = RunConfig.checked({"method": "fedper", "model": "mlp(hidden=[8])", "clients": 1})
    experiment = Experiment.build(config, data=data)
    state = {"model": experiment.program.nets[0].tree()}
    card = card_of(experiment, data, state, cid=0, holder=0, name="a", moment="received", number=3)
    PersonalModel.of(experiment.program, state, card).save(folder)
    return folder


def saved_models(folder: Path) -> Callable[[random.Random], Input]:
    """Cards and tensors, mostly with digests that fit."""
    model = saved_model(folder / "model")
    card = json.loads((model / "card.json").read_text())
    (name,) = card["files"]
    tensors = (model / name).read_bytes()
    rows = np.zeros((2, 1, 8, 8), np.uint8)

    def make(rng: random.Random) -> Input:
        changed = altered_json(rng, card)
        packed = altered_bytes(rng, tensors) if rng.random() < 0.3 else tensors
        (model / name).write_bytes(packed)
        if isinstance(changed, dict) and rng.random() < 0.8:
            changed["files"] = {name: sha256(packed).hexdigest()}
            changed.pop("sha256", None)
            body = json.dumps(changed, sort_keys=True)
            changed["sha256"] = sha256(body.encode()).hexdigest()
        text = json.dumps(changed)
        (model / "card.json").write_text(text)
        return lambda: PersonalModel.load(model).predict(rows), text

    return make


# ---------------------------------------------------------------------- data


def tables(folder: Path) -> Callable[[random.Random], Input]:
    """CSV, Parquet, and numpy's archives."""
    frame = pd.DataFrame({"a": np.arange(12.0), "b": range(12), "label": ["x", "y"] * 6})
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    arrays = {"x": np.zeros((6, 3), np.float32), "y": np.arange(6) % 2}
    np.savez(folder / "t.npz", **arrays)
    np.savez_compressed(folder / "u.npz", **arrays)
    good = {n: (folder / n).read_bytes() for n in ("t.csv", "t.parquet", "t.npz", "u.npz")}

    def make(rng: random.Random) -> Input:
        name = rng.choice(list(good))
        changed = altered_bytes(rng, good[name])
        if name == "t.csv" and rng.random() < 0.5:
            text = altered_text(rng, good[name].decode())
            changed = text.encode("utf-8", "surrogatepass")
        (folder / name).write_bytes(changed)
        return lambda: load(folder / name), (name, changed)

    return make


def headers(folder: Path) -> Callable[[random.Random], Input]:
    """Arrays that promise more than any machine holds."""

    def make(rng: random.Random) -> Input:
        shape = tuple(rng.choices([0, 1, 3, 10**6, 10**12, 2**62, 10**30], k=rng.randint(0, 4)))
        kind = rng.choice(["<f4", "<i8", "|u1", "|O", "<U1000000", "|V8"])
        with zipfile.ZipFile(folder / "h.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", header(shape, kind) + b"\0" * 100)
            archive.writestr("y.npy", header((2,), "<i8") + b"\0" * 16)
        return lambda: load(folder / "h.npz"), (shape, kind)

    return make


def header(shape: tuple[int, ...], kind: str) -> bytes:
    """Of an array in numpy's format."""
    head = io.BytesIO()
    about = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, about)
    return head.getvalue()


def images(folder: Path) -> Callable[[random.Random], Input]:
    """A folder of PNG files, of impossible sizes or damaged."""
    sizes = [0, 1, 8, 20000, 65535, 2**31 - 1]
    place = folder / "images"
    for name in ("x", "y"):
        (place / name).mkdir(parents=True)

    def make(rng: random.Random) -> Input:
        data = png(rng.choice(sizes), rng.choice(sizes))
        if rng.random() < 0.5:
            data = altered_bytes(rng, png(8, 8, b"\0" * 72))
        for name in ("x", "y"):
            (place / name / "1.png").write_bytes(data)
        return lambda: load(place), data

    return make


def png(width: int, height: int, pixels: bytes = b"\0" * 100) -> bytes:
    """A grey picture with checksums that are right."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    about = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", about)
    return start + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


# ---------------------------------------------------------------------- messages


def messages(folder: Path) -> Callable[[random.Random], Input]:
    """Orders and replies of a deployment, as bytes of Flower's own format.

    The server reads replies as it does in a round (`_read_or_absent`: what is wrong costs the
    sender the round), a site reads orders as its app does. What Flower cannot decode never reaches
    either: `Line` refuses it.
    """
    import torch
    from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
    from flwr.proto.recorddict_pb2 import RecordDict as Proto

    from fedloom.engines import Absent
    from fedloom.engines.flower import codec
    from fedloom.engines.flower.engine import UNREADABLE, _opened, _read_or_absent
    from fedloom.engines.flower.reply_size import SMALL
    from fedloom.engines.message_bundle import bundled

    state: State = {"method": {"w": torch.ones(3, 2), "b": torch.zeros(2)}}
    score = ClientScore("received", "test", 4, {"accuracy": 0.5}, "personal")
    up = Up(state, 10, {"loss": 0.5}, (score,))
    plan = Plan(t=1, kind="train")
    order = codec.Order(3, "client", Down(plan, state), None, Ask(("received",), ("test",)))
    good = {
        "reply": codec.write_reply(codec.Reply(3, up, "0" * 64)),
        "order": codec.write_order(order, {}),
        "error": codec.write_error("BadInput", "no rows"),
    }
    packed = {k: recorddict_to_proto(bundled(v)).SerializeToString() for k, v in good.items()}

    def make(rng: random.Random) -> Input:
        kind = rng.choice(list(packed))
        data = altered_bytes(rng, packed[kind])

        def read() -> object:
            try:
                records = recorddict_from_proto(Proto.FromString(data))
            except UNREADABLE as e:  # as a `Line` does
                raise FedloomError(f"Flower cannot decode it: {e!r:.80}") from None
            reader = codec.read_order if kind == "order" else codec.read_reply
            answer = _read_or_absent(_opened(records, SMALL), reader)
            if isinstance(answer, Absent):
                raise FedloomError(answer.why)
            return answer

        return read, (kind, data)

    return make


TARGETS: dict[str, tuple[Target, float]] = {
    "expressions": (expressions, 0.62),
    "models and divisions": (models_and_divisions, 0.005),
    "configurations": (configurations, 0.18),
    "partitions": (partitions, 0.03),
    "checkpoints": (checkpoints, 0.03),
    "run folders": (run_folders, 0.005),
    "models": (saved_models, 0.01),
    "tables": (tables, 0.02),
    "headers": (headers, 0.005),
    "images": (images, 0.005),
    "messages": (messages, 0.09),
}
"""With the share of all inputs that each is given: those that are quick to try get more."""
