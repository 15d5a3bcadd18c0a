"""Files of strangers and wide tables, by the commands a user has: each must end with a sentence.

python attacks/files.py
"""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path

import numpy as np

FEDLOOM = [sys.executable, "-c", "from fedloom.cli import main; main()"]
LOAD = "import sys; from fedloom.data import load; s = load(sys.argv[1]); print(s.shape, len(s))"
PERSONAL = "import sys; from fedloom.deploy.personal import Personal; Personal.load(sys.argv[1])"


def outcome(what: str, *words: object, python: str = "", seconds: float = 60) -> None:
    command = [sys.executable, "-c", python] if python else FEDLOOM
    begun = time.monotonic()
    try:
        done = subprocess.run(
            [*command, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        print(f"{what}: HANGS after {seconds:g} s", flush=True)
        return
    text = (done.stderr.strip() or done.stdout.strip()).splitlines()
    trace = "our sentence" if not python else "an exception"
    kind = f"TRACEBACK ({trace})" if "Traceback" in done.stderr else f"exit {done.returncode}"
    took = time.monotonic() - begun
    print(f"{what}: {kind}, {took:.1f} s: {' '.join(text[-2:])[-230:]}", flush=True)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width: int, height: int) -> bytes:
    """A picture of zeros, of which a few bytes unpack to all of it."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    rows = zlib.compress(bytes((width + 1) * height), 1)
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def tables(folder: Path) -> None:
    (folder / "p1.csv").write_text("a,b,label\n1,2,0\n3,4,1\n")
    outcome("p[1].csv beside p1.csv", folder / "p[1].csv", python=LOAD)
    for columns in (500, 1000, 2000):
        file = folder / f"wide{columns}.csv"
        names = ",".join(f"c{i}" for i in range(columns))
        rows = "\n".join(",".join(["1.5"] * columns) + f",{y}" for y in (0, 1))
        file.write_text(f"{names},label\n{rows}\n")
        outcome(f"{columns} columns", file, python=LOAD)
    header = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 3)}
    file = folder / "huge.npy"
    with open(file, "wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
    import zipfile

    with zipfile.ZipFile(folder / "huge.npz", "w") as archive:
        archive.write(file, "x.npy")
        archive.write(file, "y.npy")
    outcome("an npz header of 10**12 rows", folder / "huge.npz", python=LOAD)
    for kind in ("a", "b"):
        (folder / "images" / kind).mkdir(parents=True)
        (folder / "images" / kind / "1.png").write_bytes(png(20_000, 20_000))
    outcome("400 megapixels", folder / "images", python=LOAD)


def runs(folder: Path) -> None:
    outcome("run --method dbe", "run", "--method", "dbe")
    outcome("rounds=9223372036854775807", "run", "rounds=9223372036854775807")
    run = folder / "run"
    words = ("run", "--method", "fedavg", "rounds=1", "epochs=1", "clients=3", f"out={run}")
    outcome("an honest run", *words)
    for name, text in (("config.json", "[1]"), ("summary.json", "{}")):
        kept = (run / name).read_text()
        (run / name).write_text(text)
        outcome(f"{name} {text}", "report", run)
        (run / name).write_text(kept)
    manifest = next(run.glob("checkpoints/step-*/manifest.json"))
    kept = manifest.read_text()
    manifest.write_text(json.dumps({**json.loads(kept), "step": -3}))
    outcome("manifest step -3", "resume", run)
    manifest.write_text(kept)
    outside = folder / "outside"
    outside.mkdir()
    (outside / "precious").mkdir()
    (run / "summary.json").unlink()
    (run / "summary.json").symlink_to(outside / "summary.json")
    outcome("summary.json is a link", "resume", run)
    print("   written through the link:", (outside / "summary.json").exists())
    (run / "checkpoints").rename(run / "kept")
    (run / "checkpoints").symlink_to(outside)
    outcome("checkpoints are a link", "resume", run)
    print("   still there:", sorted(os.listdir(outside)))


def cards(folder: Path) -> None:
    card = folder / "model"
    card.mkdir()
    (card / "card.json").write_text("{}")
    outcome("card.json {}", card, python=PERSONAL)
    (card / "card.json").write_text(json.dumps({"tensors": "/etc/passwd"}))
    outcome("card with an absolute path", card, python=PERSONAL)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="attack-") as scratch:
        os.environ["FEDLOOM_CACHE"] = str(Path(scratch) / "cache")
        for attack in (tables, runs, cards):
            attack(Path(scratch))


if __name__ == "__main__":
    main()
