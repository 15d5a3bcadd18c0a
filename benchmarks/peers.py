"""Environments of other frameworks, for the speed benchmark only; fedloom never depends on them.

Each peer has a venv of its own: their pins conflict with ours and with each other's. All of them
have the torch that fedloom is measured with, so that only the frameworks differ.

    python benchmarks/peers.py flower contestants/flower_peer.py FOLDER --workers 2
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
FOLDER = HERE / ".peers"
TORCH = "2.13.0"
COMMON = (f"torch=={TORCH}", "numpy==2.4.6", "setuptools==84.2.1")
PEERS = {
    "pfl": ("pfl[pytorch]==0.6.0", "dp-accounting==0.5.1", "prv-accountant==0.2.0"),
    "pfllib": ("h5py==3.16.0", "scikit-learn==1.8.0", "matplotlib==3.11.2"),
    "flower": ("flwr[simulation]==1.41.0", "ray==2.55.1", "grpcio==1.85.1", "protobuf==6.33.6"),
}
# A network of its own, because Ray opens connections to outside addresses even when it is told
# not to, and process ids of its own, because then the kernel ends all helpers with the script.
ISOLATED = ("--net", "--pid", "--fork", "--mount-proc", "--kill-child")
LOOPBACK = 'ip link set lo up && exec "$@"'


class PeerError(RuntimeError):
    """A peer cannot be used here; one sentence says why."""


def python_of(peer: str, folder: Path = FOLDER) -> Path:
    """The interpreter of a peer's environment, which is made first if it is not there."""
    wanted = [*COMMON, *_pins(peer)]
    home = folder / peer
    python, marker = home / "bin" / "python", home / "installed"
    if marker.exists() and json.loads(marker.read_text()) == wanted:
        return python
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("*\n")
    marker.unlink(missing_ok=True)
    _step(peer, [sys.executable, "-m", "venv", "--clear", str(home)])
    # One resolution with torch named exactly: no dependency can bring another one.
    _step(peer, [str(python), "-m", "pip", "install", "--quiet", *wanted])
    _step(peer, [str(python), "-c", _CHECK, TORCH])
    marker.write_text(json.dumps(wanted))
    return python


def environment(peer: str, folder: Path = FOLDER) -> dict[str, str]:
    """Variables for a peer's process: one thread each, no telemetry, no installation on the fly."""
    _pins(peer)
    own = {
        "pfl": {"PFL_PYTORCH_DEVICE": "cpu"},
        "pfllib": {},
        "flower": {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_HOME": str((folder / peer / "home").resolve()),
            "RAY_USAGE_STATS_ENABLED": "0",
        },
    }
    return {**os.environ, "OMP_NUM_THREADS": "1", **own[peer]}


def command(
    peer: str, script: Path | str, args: Sequence[object] = (), folder: Path = FOLDER
) -> list[str]:
    """What to run, with `environment(peer)`, to start a script in a peer's environment.

    End it early with SIGKILL (`Popen.kill`, which a timeout of `subprocess.run` sends): that
    takes everything along, whereas `unshare` does not pass SIGTERM on.
    """
    plain = [str(python_of(peer, folder)), str(script), *map(str, args)]
    start = _namespace()
    if start:
        return [*start, "bash", "-c", LOOPBACK, "isolated", *plain]
    if peer == "flower":
        raise PeerError(
            "flower cannot run here: its engine Ray must be kept off the network, and this "
            "machine does not allow network namespaces (`unshare --net` and `ip` have to work)."
        )
    return plain


@cache
def _namespace() -> tuple[str, ...]:
    """The start of a command that isolates the rest, also for a plain user; () if not allowed."""
    for start in (("unshare", *ISOLATED), ("unshare", "--map-root-user", *ISOLATED)):
        try:
            tried = [*start, "bash", "-c", LOOPBACK, "isolated", "true"]
            if subprocess.run(tried, capture_output=True, check=False).returncode == 0:
                return start
        except FileNotFoundError:
            break
    return ()


def _pins(peer: str) -> tuple[str, ...]:
    if peer not in PEERS:
        raise PeerError(f"there is no peer {peer!r}; known are {', '.join(PEERS)}.")
    return PEERS[peer]


def _step(peer: str, call: list[str]) -> None:
    """One step of an installation, or a sentence with the last thing it said."""
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "nothing was said").splitlines()[-1]
        raise PeerError(f"{peer} cannot be installed for the benchmark: {said}")


_CHECK = """
import sys
from importlib.metadata import distributions
names = {d.metadata["Name"].lower() for d in distributions()}
foreign = sorted(n for n in names if n.startswith(("nvidia", "cuda", "triton")))
if foreign:
    sys.exit("pip chose a CUDA build of torch; point it at CPU wheels: " + ", ".join(foreign))
import torch
if torch.__version__.split("+")[0] != sys.argv[1]:
    sys.exit("pip chose torch " + torch.__version__ + " instead of " + sys.argv[1])
"""


def main() -> None:
    """Install all peers, or run one script in the environment of one."""
    try:
        if len(sys.argv) < 3:
            for peer in sys.argv[1:] or PEERS:
                print(peer, python_of(peer), flush=True)
            return
        peer, script, *args = sys.argv[1:]
        call = command(peer, script, args)
    except PeerError as error:
        sys.exit(str(error))
    sys.exit(subprocess.run(call, env=environment(peer), check=False).returncode)


if __name__ == "__main__":
    main()
