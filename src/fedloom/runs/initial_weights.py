"""What a run begins with instead of random weights: a file of tensors, or another run's model."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path

from fedloom.core.digest import digest
from fedloom.core.net import METHOD, Net
from fedloom.core.tree import Tree
from fedloom.errors import BadInput
from fedloom.extensions import PIN
from fedloom.models.weights import fill, read_weights
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.folder import RunPaths


def begin_with(nets: Sequence[Net], start: str, without: str) -> str:
    """Begin the networks with a file's tensors, or with a run folder's shared model.

    Returns the path with the digest of its content, which a run records. Where `start` has such a
    digest already, because a recorded run is built again, other content is refused.
    """
    written, _, recorded = start.partition(PIN)
    path = Path(written).resolve()
    tensors, sha256 = _content(path)
    if recorded and sha256 != recorded:
        raise BadInput(
            f"{path} is not what the run began with (sha256 {sha256[:12]}, was {recorded[:12]});"
            " restore it, or start a new run"
        )
    for net in nets:
        fill(net, tensors, without, f"start = {str(path)!r}")
    return f"{path}{PIN}{sha256}"


def _content(path: Path) -> tuple[Tree, str]:
    """Tensors and digest."""
    if path.is_file():
        with path.open("rb") as file:
            sha256 = file_digest(file, "sha256").hexdigest()
        return read_weights(path), sha256
    if not path.is_dir():
        raise BadInput(f"start: there is no file or run folder {str(path)!r}; check the path")
    folder = RunPaths(path)
    folder.check_format()
    model = Checkpoints(folder.checkpoints).newest_server().get(METHOD, {})
    if not model:
        raise BadInput(
            f"start: the run in {str(path)!r} shares no tensor of its model; take one of a method"
            " that does"
        )
    return model, digest({METHOD: model})
