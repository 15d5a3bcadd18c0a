"""What a run begins with instead of random weights: a file of tensors, the pretrained weights of an
installed package, or another run's model."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import file_digest
from pathlib import Path

from fedloom.core.digest import digest
from fedloom.core.net import METHOD, Net
from fedloom.core.tree import Tree
from fedloom.errors import BadInput
from fedloom.extensions import PIN
from fedloom.models.pretrained import pretrained_weights
from fedloom.models.weights import fill, read_weights
from fedloom.runs.checkpoint import Checkpoints
from fedloom.runs.config import OF_PACKAGE
from fedloom.runs.folder import RunPaths


def begin_with(nets: Sequence[Net], start: str, without: str) -> str:
    """Begin the networks with a file's tensors, a package's (`pretrained:NETWORK`), or with a run
    folder's shared model.

    Returns the path, or `pretrained:NETWORK`, with the digest of its content, which a run records.
    Where `start` has such a digest already, because a recorded run is built again, other content
    is refused.
    """
    written, _, recorded = start.partition(PIN)
    tensors, sha256, origin = _content(written)
    if recorded and sha256 != recorded:
        raise BadInput(
            f"{origin} is not what the run began with (sha256 {sha256[:12]}, was {recorded[:12]});"
            " restore it, or start a new run"
        )
    for net in nets:
        fill(net, tensors, without, f"start = {origin!r}")
    return f"{origin}{PIN}{sha256}"


def _content(written: str) -> tuple[Tree, str, str]:
    """Tensors, their digest, and where they are from."""
    if written.startswith(OF_PACKAGE):
        tensors, sha256 = pretrained_weights(written.removeprefix(OF_PACKAGE))
        return tensors, sha256, written
    path = Path(written).resolve()
    if path.is_file():
        with path.open("rb") as file:
            sha256 = file_digest(file, "sha256").hexdigest()
        return read_weights(path), sha256, str(path)
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
    return model, digest({METHOD: model}), str(path)
