"""IDX files, the format MNIST and EMNIST are published in: `emnist-byclass-train-images-...`."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedloom.data.source import Source
from fedloom.errors import BadInput

_HEAD = b"\0\0\x08"  # of every file whose values are unsigned bytes


@dataclass(frozen=True)
class IdxFiles:
    """The four files of one data set in a folder, gzipped or not."""

    folder: Path
    prefix: str  # what their names begin with, "emnist-byclass"

    def present(self) -> bool:
        """Whether the folder has any of them."""
        return any(self.folder.rglob(f"{self.prefix}-*-ubyte*"))

    def read(self, name: str, class_names: Sequence[str]) -> Source:
        """Both splits, the test rows last."""
        parts = [(self._array(s, "images-idx3"), self._array(s, "labels-idx1")) for s in _SPLITS]
        for split, (x, y) in zip(_SPLITS, parts, strict=True):
            if len(x) != len(y):
                raise BadInput(
                    f"{self.folder} has {len(x)} {split} images and {len(y)} labels of them; "
                    "download the files again"
                )
        x, y = (np.concatenate(both) for both in zip(*parts, strict=True))
        return Source.from_arrays(
            x,
            y,
            name=name,
            kind="image",
            class_names=class_names,
            official_test=np.arange(len(y)) >= len(parts[0][1]),
        )

    def _array(self, split: str, what: str) -> np.ndarray:
        pattern = f"{self.prefix}-{split}-{what}-ubyte"
        files = sorted(self.folder.rglob(f"{pattern}*"))
        if not files:
            raise BadInput(f"{self.folder} has no file {pattern}.gz; put all four files there")
        return _read(files[0])


_SPLITS = ("train", "test")


def _read(file: Path) -> np.ndarray:
    try:
        content = file.read_bytes()
        content = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        if content[:3] != _HEAD:
            raise ValueError("it is no IDX file of bytes")
        axes = content[3]
        shape = np.frombuffer(content, ">i4", axes, offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, ValueError, IndexError, zlib.error) as e:
        raise BadInput(f"cannot read {file} ({e}); download it again") from None
