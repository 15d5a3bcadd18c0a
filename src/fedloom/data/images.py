"""Image files and stored images as one array of pixels."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedloom.data.cache import cache_root
from fedloom.data.options import Options
from fedloom.data.source import Source
from fedloom.errors import BadInput

if TYPE_CHECKING:
    from PIL.Image import Image

Picture = bytes | Path
COMMON_SIZE = 64  # side of images of unlike sizes, unless the user names one

_SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_SPLITS = {"train", "test", "val", "valid", "validation"}
_GREY = {"1", "L", "LA"}
_ORIENTATION = 0x0112  # the EXIF tag


def picture_files(folder: Path) -> list[Path]:
    """Every image file below a folder, sorted; hidden files are left out."""
    return sorted(f for f in folder.rglob("*") if is_picture(f))


def is_picture(file: Path) -> bool:
    """Whether a path is an image file by its name, and not hidden."""
    return file.suffix.lower() in _SUFFIXES and not file.name.startswith(".") and file.is_file()


def read_images(folder: Path, scratch: Path, options: Options, name: str | None = None) -> Source:
    """Images in `class/`, `domain/class/` or `train/class/` and `test/class/`."""
    options.columns.refuse_for(f"the folder of images {folder}")
    files = picture_files(folder)
    parents = [f.relative_to(folder).parts[:-1] for f in files]
    depths = {len(p) for p in parents}
    if depths not in ({1}, {2}):
        problem = f"no images in {folder}" if not files else f"images at unlike depths in {folder}"
        raise BadInput(
            f"{problem}; put them in class/*.jpg or domain/class/*.jpg, or give a folder of "
            "parquet files"
        )
    top_folders = [p[0] for p in parents] if depths == {2} else []
    are_splits = bool(top_folders) and set(top_folders) <= _SPLITS
    has_test = are_splits and len(set(top_folders)) > 1
    return Source.from_arrays(
        decode(lambda: files, len(files), options.image_size, scratch),
        [p[-1] for p in parents],
        name=name or folder.name,
        kind="image",
        class_names=options.class_names,
        official_test=[top == "test" for top in top_folders] if has_test else None,
        domain=top_folders if top_folders and not are_splits else None,
    )


def check_picture(picture: Picture, row: int = 0) -> None:
    """An error for what cannot be decoded."""
    with _open(picture, row) as image:
        _pixels(image, picture, row, _Frame("RGB", image.size, True))


def decode(
    pictures: Callable[[], Iterable[Picture]], n: int, size: int | None, scratch: Path
) -> np.ndarray:
    """Images as uint8 `[n, C, H, W]`, written row by row to `x.npy` in `scratch`.

    All-grey images keep one channel, otherwise all get three. With `size`, or where sizes differ
    (then to 64 pixels), images are resized to a square by bilinear interpolation.
    """
    if size is not None and (isinstance(size, bool) or size < 1):
        raise BadInput(f"image_size must be a positive number of pixels, not {size!r}")
    frame = _Frame("L", (size, size), True) if size else _Frame.of(next(iter(pictures())))
    while True:
        shape = (n, len(frame.mode), frame.size[1], frame.size[0])
        _check_disk(shape, scratch)
        (scratch / "x.npy").unlink(missing_ok=True)
        x: np.ndarray = np.lib.format.open_memmap(scratch / "x.npy", "w+", np.uint8, shape)
        wider = _fill(x, pictures(), frame)
        if wider is None:
            return x
        frame = wider


def pictures_as(files: Sequence[Path], shape: tuple[int, ...]) -> np.ndarray:
    """Image files as uint8 `[n, C, H, W]` of just this shape: resized, grey or in colour."""
    channels, height, width = shape
    if channels not in (1, 3):
        raise BadInput(
            f"images have 1 or 3 channels, and here {channels} are wanted; give an array"
        )
    frame = _Frame("L" if channels == 1 else "RGB", (width, height), True)
    x = np.empty((len(files), *shape), np.uint8)
    for row, file in enumerate(files):
        with _open(file, row) as image:
            x[row] = _pixels(image, file, row, frame)
    return x


def _check_disk(shape: tuple[int, ...], scratch: Path) -> None:
    """Refuse what does not fit on the disk: writing to a full one would kill the process."""
    needed, free = prod(shape), shutil.disk_usage(scratch).free
    if needed > free:
        raise BadInput(
            f"{shape[0]} images of {shape[3]}x{shape[2]} pixels take {needed / 1e9:.1f} GB, and "
            f"the cache folder {cache_root()} has {free / 1e9:.1f} GB left; give a smaller "
            "image_size (--image-size), or another folder by FEDLOOM_CACHE"
        )


@dataclass(frozen=True)
class _Frame:
    """What every image is converted to.

    It grows while images are decoded, so that files need not be read once more beforehand.
    """

    mode: str
    size: tuple[int, int]
    fixed: bool  # images of another size are resized to this one

    @classmethod
    def of(cls, picture: Picture) -> _Frame:
        with _open(picture, row=0) as image:
            return cls("L", image.size, False).holding(image)

    def holding(self, image: Image) -> _Frame:
        """This frame if it can hold the image, otherwise the one that can."""
        mode = self.mode if image.mode in _GREY else "RGB"
        if self.fixed or image.size == self.size:
            return replace(self, mode=mode)
        return _Frame(mode, (COMMON_SIZE, COMMON_SIZE), True)


def _fill(x: np.ndarray, pictures: Iterable[Picture], frame: _Frame) -> _Frame | None:
    """Decode into `x`; at the first image the frame cannot hold, stop and return one that can."""
    for row, (pixels, picture) in enumerate(zip(x, pictures, strict=True)):
        with _open(picture, row) as image:
            wider = frame.holding(image)
            if wider != frame:
                return wider
            pixels[:] = _pixels(image, picture, row, frame)
    return None


def _open(picture: Picture, row: int) -> Image:
    """An opened image; its pixels are read only where the camera's turn has to be undone."""
    from PIL import Image, ImageOps

    try:
        image = Image.open(BytesIO(picture) if isinstance(picture, bytes) else picture)
        # Asking a PNG for its EXIF data would decode it, and no camera writes PNG.
        turned = image.format != "PNG" and image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except Exception as e:  # a damaged file makes Pillow raise errors of many kinds
        raise _unreadable(picture, row, e) from None


def _pixels(image: Image, picture: Picture, row: int, frame: _Frame) -> np.ndarray:
    from PIL.Image import Resampling

    try:
        converted = image.convert(frame.mode)
    except Exception as e:  # as above: the pixels are only decoded here
        raise _unreadable(picture, row, e) from None
    if converted.size != frame.size:
        converted = converted.resize(frame.size, Resampling.BILINEAR)
    pixels = np.asarray(converted)
    return pixels[None] if frame.mode == "L" else pixels.transpose(2, 0, 1)


def _unreadable(picture: Picture, row: int, error: Exception) -> BadInput:
    from PIL.Image import DecompressionBombError

    what = picture if isinstance(picture, Path) else f"the image in row {row}"
    if isinstance(error, DecompressionBombError):
        return BadInput(f"{what} claims to have too many pixels ({error}); make it smaller")
    return BadInput(f"cannot decode {what}; it is damaged or no image: remove or replace it")
