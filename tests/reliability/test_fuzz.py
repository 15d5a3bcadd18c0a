"""Random damage to everything a stranger may hand over: expressions, configurations, partitions,
checkpoints, models, tables, images. Whatever it is, the answer is a result or one sentence, in
time, and nothing outside the folder is written or removed.

`FEDLOOM_FUZZ=100` tries a hundred times as many.
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
import warnings
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from test_strangers import contents, saved_model

from fedloom import federate, load, resume, run
from fedloom.core.protocol import parse_protocol
from fedloom.data import FederatedData, Partition
from fedloom.data.partition.assignment import ClientRows
from fedloom.errors import FedloomError
from fedloom.methods import parse_method
from fedloom.models import build_model
from fedloom.report.page import report
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.config import RunConfig
from fedloom.runs.ledger import Account
from fedloom.serving.model import PersonalModel

TIMES = int(os.environ.get("FEDLOOM_FUZZ", "1"))
SECONDS = 20
WORDS = ["0", "-1", "9" * 19, "9" * 30, "9" * 5000, "1e308", "1e400", "nan", "true", "none", "''"]
WORDS += ["[", "]", "(", ")", "=", ",", "+", "-", "*", "**2", "[[", "{", "}", "\0", "\ud800", "é"]
WORDS += ["__import__('os')", "lambda: 0", "(" * 300, "../../outside", "/etc/passwd", "#", '"""']
VALUES: list[Any] = [None, True, 0, -1, 10**30, -(2**63), 1.5, float("nan"), "", "x", "../../x"]
VALUES += [[], {}, [[]], [0], ["x"], {"x": 0}, "/dev/zero", "\ud800", [10**9], 2**63, 1e308]


class TooLong(BaseException):
    """An input that hangs."""


@contextmanager
def alarm(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def attempt(call: Callable[[], object], shown: object) -> bool:
    """Was it accepted? Only a sentence may be raised, and soon."""
    try:
        with alarm(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except FedloomError:
        return False
    except BaseException as e:
        raise AssertionError(f"{type(e).__name__}: {e} for {shown!r:.3000}") from e
    return True


def altered_text(rng: random.Random, text: str) -> str:
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
    """The value with one node replaced, removed or doubled."""
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


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to work in, beside one that must stay as it is."""
    outside, inside = tmp_path / "outside", tmp_path / "a" / "inside"
    outside.mkdir()
    (outside / "thesis.txt").write_text("years of work")
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    yield inside
    assert contents(outside) == {"thesis.txt": b"years of work"}
    assert {p.name for p in tmp_path.iterdir()} <= {"outside", "a", "cache"}
    assert {p.name for p in (tmp_path / "a").iterdir()} == {"inside"}


METHODS = [
    "fedavg + proximal(mu=0.01)",
    "fedper(lr=0.1)",
    "fedavg + dbe(kappa=5)",
    "dualfed",
    "dbe",
]
METHODS += ["fedrep(head_epochs=2)", "ditto(lam=0.1) + moon(tau=0.5)", "fedbr", "fedcr(beta=1e-3)"]
PROTOCOLS = ["fedpac(moment=received)", "cohort", "fedloom(select=best_val, split=val)"]
MODELS = ["mlp(hidden=[8, 8])", "cnn4", "auto", "mlp(hidden=[4]) | mlp(hidden=[5])", "mlp"]
DIVISIONS = ["dirichlet(alpha=0.1)", "iid", "pathological(classes_per_client=2)", "by_user"]
DIVISIONS += ["quantity(alpha=1)", "dominant(share=0.8)"]
SPLITS = ["merged(train=0.75)", "merged(train=0.6, val=0.2)", "shared_test"]
SHIFTS = ["rotate(step=15)", "none"]


@pytest.fixture(scope="module")
def small() -> Any:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 255, (80, 1, 8, 8)).astype(np.uint8)
    return load((pixels, rng.integers(0, 4, 80)))


def test_expressions(here: Path, small: Any) -> None:
    rng = random.Random(1)
    refused = 0
    for _ in range(150 * TIMES):
        text = altered_text(rng, rng.choice(METHODS))
        refused += not attempt(lambda: parse_method(text), text)  # noqa: B023 (called at once)
        text = altered_text(rng, rng.choice(PROTOCOLS))
        refused += not attempt(lambda: parse_protocol(text), text)  # noqa: B023
    for _ in range(20 * TIMES):
        text = altered_text(rng, rng.choice(MODELS))
        refused += not attempt(lambda: build_model(text, (1, 8, 8), 4, seed=0), text)  # noqa: B023
        division, split, shift = map(rng.choice, (DIVISIONS, SPLITS, SHIFTS))
        part = rng.randrange(3)
        words = [division, split, shift]
        words[part] = altered_text(rng, words[part])
        refused += not attempt(lambda: divided(small, *words), words)  # noqa: B023
    assert refused


def divided(source: Any, division: str, split: str, shift: str) -> FederatedData:
    return federate(source, division, 4, 0, split, shift=None if shift == "none" else shift)


def test_configurations(here: Path) -> None:
    rng = random.Random(2)
    refused = 0
    text = "\n".join(
        f"{key} = {json.dumps(value)}"
        for key, value in RunConfig().model_dump().items()
        if value is not None
    )
    for _ in range(150 * TIMES):
        changed = altered_text(rng, text)
        Path("run.toml").write_bytes(changed.encode("utf-8", "surrogatepass"))
        refused += not attempt(lambda: RunConfig.read(Path("run.toml")), changed)
    assert refused


def test_partitions(here: Path, small: Any) -> None:
    rng = random.Random(3)
    refused = 0
    divided(small, "iid", "merged(train=0.75)", "none").partition.save("p.json")
    saved = json.loads(Path("p.json").read_text())
    for _ in range(60 * TIMES):
        changed = altered_json(rng, saved)
        with suppress(Exception):  # then it has no right fingerprint
            changed["fingerprint"] = fingerprint(changed)
        text = json.dumps(changed)
        if rng.random() < 0.2:
            text = altered_text(rng, text)
        Path("p.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        refused += not attempt(lambda: federate(small, "p.json"), text)
    assert refused


def fingerprint(saved: Any) -> str:
    """The right one of an altered partition, as a stranger would write it."""
    maps = saved["label_maps"]
    return Partition(
        tuple(ClientRows(*(np.array(rows, np.int64) for rows in c)) for c in saved["clients"]),
        {name: np.array(rows, np.int64) for name, rows in saved["shared"].items()},
        None if maps is None else np.array(maps, np.int64),
    ).fingerprint


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory, small: Any) -> Path:
    """A run that stopped before its end; with personal parts, so that clients have states too."""
    folder = tmp_path_factory.mktemp("done") / "run"
    settings: Any = {
        "clients": 4,
        "partition": "iid",
        "model": "mlp(hidden=[8])",
        "checkpoint_every": 1,
    }
    run("fedper", "digits", rounds=2, out=str(folder), **settings)
    (folder / "summary.json").unlink()
    for step in sorted((folder / "checkpoints").iterdir())[:-1]:
        shutil.rmtree(step)
    return folder


def test_run_folders(here: Path, done: Path) -> None:
    """Of every file, also of a manifest whose digests were made right again."""
    rng = random.Random(4)
    files = [p.relative_to(done) for p in sorted(done.rglob("*")) if p.is_file()]
    files = [f for f in files if f.suffix in (".json", ".jsonl", ".safetensors", ".states")]
    for _ in range(60 * TIMES):
        shutil.rmtree("run", ignore_errors=True)
        shutil.copytree(done, "run")
        file = Path("run") / rng.choice(files)
        if file.name in ("manifest.json", "config.json", "versions.json"):
            changed = altered_json(rng, json.loads(file.read_text()))
            file.write_text(json.dumps(changed))
        elif file.suffix == ".jsonl":
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            file.write_text("".join(json.dumps(line) + "\n" for line in altered_json(rng, lines)))
        else:
            file.write_bytes(altered_bytes(rng, file.read_bytes()))
        for manifest in Path("run").glob("checkpoints/*/manifest.json"):
            repair(manifest)
        shown = (file, file.read_bytes()[:2000])
        config = Path("run/config.json").read_text()
        attempt(lambda: Checkpoints(Path("run/checkpoints")).load_latest(), shown)
        attempt(lambda: Account.read(Path("run/ledger.jsonl")).as_json(), shown)
        attempt(lambda: report([Path("run")], Path("page.html")), shown)
        if file.name != "config.json":  # others may ask for a long training
            attempt(lambda: resume("run", progress=False), shown)
        assert Path("run/config.json").read_text() == config


def repair(manifest: Path) -> None:
    """Digests and sizes as they are now, as a stranger would do it."""
    body = json.loads(manifest.read_text())
    if not isinstance(body, dict):
        return
    files = body.get("files")
    for name, about in files.items() if isinstance(files, dict) else ():
        file = manifest.parent / name
        if isinstance(about, dict) and file.is_file():
            about |= {"size": file.stat().st_size, "sha256": sha256(file.read_bytes()).hexdigest()}
    body.pop("sha256", None)
    digest = sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    manifest.write_text(json.dumps({**body, "sha256": digest}))


def test_models(here: Path) -> None:
    rng = random.Random(5)
    refused = 0
    folder = saved_model(here / "model")
    card = json.loads((folder / "card.json").read_text())
    (name,) = card["files"]
    tensors = (folder / name).read_bytes()
    rows = np.zeros((2, 1, 8, 8), np.uint8)
    for _ in range(60 * TIMES):
        changed = altered_json(rng, card)
        packed = altered_bytes(rng, tensors) if rng.random() < 0.3 else tensors
        (folder / name).write_bytes(packed)
        if isinstance(changed, dict) and rng.random() < 0.8:
            changed["files"] = {name: sha256(packed).hexdigest()}
            changed.pop("sha256", None)
            body = json.dumps(changed, sort_keys=True)
            changed["sha256"] = sha256(body.encode()).hexdigest()
        text = json.dumps(changed)
        (folder / "card.json").write_text(text)
        refused += not attempt(lambda: PersonalModel.load(folder).predict(rows), text)
    assert refused


def test_tables_and_arrays(here: Path) -> None:
    rng = random.Random(6)
    refused = 0
    frame = pd.DataFrame({"a": np.arange(12.0), "b": range(12), "label": ["x", "y"] * 6})
    frame.to_csv("t.csv", index=False)
    frame.to_parquet("t.parquet")
    np.savez("t.npz", x=np.zeros((6, 3), np.float32), y=np.arange(6) % 2)
    np.savez_compressed("u.npz", x=np.zeros((6, 3), np.float32), y=np.arange(6) % 2)
    for name in ("t.csv", "t.parquet", "t.npz", "u.npz"):
        data = Path(name).read_bytes()
        for i in range(12 * TIMES):
            changed = altered_bytes(rng, data)
            file = Path(f"{i}-{name}")
            file.write_bytes(changed)
            refused += not attempt(lambda: load(file), changed)  # noqa: B023
            file.unlink()
    assert refused


def png(width: int, height: int, pixels: bytes = b"\0" * 100) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header)
    return start + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def test_images(here: Path) -> None:
    rng = random.Random(7)
    refused = 0
    sizes = [0, 1, 8, 20000, 65535, 2**31 - 1]
    for i in range(15 * TIMES):
        data = png(rng.choice(sizes), rng.choice(sizes))
        if rng.random() < 0.5:
            data = altered_bytes(rng, png(8, 8, b"\0" * 72))
        folder = Path(f"images{i}")
        for name in ("x", "y"):
            (folder / name).mkdir(parents=True)
            (folder / name / "1.png").write_bytes(data)
        refused += not attempt(lambda: load(folder), data)  # noqa: B023
        shutil.rmtree(folder)
    assert refused


def header(shape: tuple[int, ...], kind: str) -> bytes:
    head = io.BytesIO()
    about = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, about)
    return head.getvalue()


def test_headers_of_arrays(here: Path) -> None:
    """Headers that promise more than any machine holds."""
    import zipfile

    rng = random.Random(8)
    refused = 0
    for _ in range(20 * TIMES):
        shape = tuple(rng.choices([0, 1, 3, 10**6, 10**12, 2**62, 10**30], k=rng.randint(0, 4)))
        kind = rng.choice(["<f4", "<i8", "|u1", "|O", "<U1000000", "|V8"])
        with zipfile.ZipFile("h.npz", "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("x.npy", header(shape, kind) + b"\0" * 100)
            archive.writestr("y.npy", header((2,), "<i8") + b"\0" * 16)
        refused += not attempt(lambda: load("h.npz"), (shape, kind))
        os.utime("h.npz", ns=(rng.randrange(10**18), rng.randrange(10**18)))
    torch.manual_seed(0)
    assert refused
