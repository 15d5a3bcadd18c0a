"""A user's own data: an `.npz` file, a folder of images, a CSV or parquet table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import BadZipFile

import numpy as np

from fedloom.data.cache import scratch_folder
from fedloom.data.source import Source
from fedloom.errors import BadInput, suggestion

if TYPE_CHECKING:
    from PIL.Image import Image

Picture = bytes | Path
COMMON_SIZE = 64  # side of images of unlike sizes, unless given

_PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"}
_TABLES = {".csv", ".parquet"}
_SPLITS = {"train", "test", "val", "valid", "validation"}
_GREY = {"1", "L", "LA"}
_ORIENTATION = 0x0112  # the EXIF tag


def read(
    path: Path,
    scratch: Path,
    *,
    image_size: int | None = None,
    label: str | None = None,
    class_names: Sequence[str] | None = None,
) -> Source:
    """The source in a file or folder, by its suffix; images are decoded into `scratch`."""
    if path.is_dir():
        return read_images(path, scratch, image_size=image_size, class_names=class_names)
    if path.suffix == ".npz":
        return read_npz(path, class_names=class_names)
    if path.suffix in _TABLES:
        return read_table(path, label=label, class_names=class_names)
    raise BadInput(
        f"cannot tell what {path} holds; give a folder of images, or a file ending in "
        f"{', '.join(sorted({'.npz', *_TABLES}))}"
    )


def read_npz(
    path: Path, *, name: str | None = None, class_names: Sequence[str] | None = None
) -> Source:
    """Arrays `x` and `y`, and where present `user` (or `client`), `domain`, `test`."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except (OSError, ValueError, BadZipFile) as e:
        raise BadInput(
            f"cannot read {path} ({e}); write it with numpy.savez(path, x=..., y=...)"
        ) from None
    for key in ("x", "y"):
        if key not in arrays:
            raise BadInput(
                f"{path} has no array {key!r}; it has: {', '.join(arrays)}. "
                "Write it with numpy.savez(path, x=..., y=...)"
            )
    return Source.from_arrays(
        arrays["x"],
        arrays["y"],
        name=name or path.stem,
        class_names=class_names,
        official_test=arrays.get("test"),
        domain=arrays.get("domain"),
        user=arrays.get("user", arrays.get("client")),
    )


def read_table(
    path: Path, *, label: str | None = None, class_names: Sequence[str] | None = None
) -> Source:
    """A label column (`label`, `target`, `y` or the one named), numeric features, and where
    present the columns `user` (or `client`) and `domain`."""
    columns = _columns(path)
    target = _pick(columns, (label,) if label else ("label", "target", "y"), path)
    domain = columns.pop("domain", None) if target != "domain" else None
    users = [columns.pop(k) for k in ("user", "client") if k in columns and k != target][:1]
    y = columns.pop(target)
    if not columns:
        raise BadInput(f"{path} has no feature columns beside {target!r}")
    for name, values in columns.items():
        if values.dtype.kind not in "biuf":
            raise BadInput(
                f"column {name!r} of {path} is not numeric; encode it as numbers or drop it"
            )
        if not np.isfinite(values.astype(np.float32)).all():
            raise BadInput(f"column {name!r} of {path} has missing or infinite values; fill them")
    return Source.from_arrays(
        np.stack([v.astype(np.float32) for v in columns.values()], axis=1),
        y,
        name=path.stem,
        kind="table",
        class_names=class_names,
        domain=domain,
        user=users[0] if users else None,
    )


def read_images(
    folder: Path,
    scratch: Path,
    *,
    name: str | None = None,
    image_size: int | None = None,
    class_names: Sequence[str] | None = None,
) -> Source:
    """Images in `class/`, `domain/class/` or `train/class/` and `test/class/`."""
    files = picture_files(folder)
    parts = [f.relative_to(folder).parts[:-1] for f in files]
    depths = {len(p) for p in parts}
    if depths not in ({1}, {2}):
        where = f"no images in {folder}" if not files else f"images at unlike depths in {folder}"
        raise BadInput(f"{where}; put them in class/*.jpg or domain/class/*.jpg")
    tops = [p[0] for p in parts] if depths == {2} else []
    splits = bool(tops) and set(tops) <= _SPLITS
    return Source.from_arrays(
        decode(lambda: files, len(files), image_size, scratch),
        [p[-1] for p in parts],
        name=name or folder.name,
        kind="image",
        class_names=class_names,
        official_test=[t == "test" for t in tops] if splits and len(set(tops)) > 1 else None,
        domain=tops if tops and not splits else None,
    )


def picture_files(folder: Path) -> list[Path]:
    """Every image file below a folder, sorted; hidden files are none."""
    return sorted(
        f
        for f in folder.rglob("*")
        if f.suffix.lower() in _PICTURES and not f.name.startswith(".") and f.is_file()
    )


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
        (scratch / "x.npy").unlink(missing_ok=True)
        x: np.ndarray = np.lib.format.open_memmap(scratch / "x.npy", "w+", np.uint8, shape)
        wider = _fill(x, pictures(), frame)
        if wider is None:
            return x
        frame = wider


@dataclass(frozen=True)
class _Frame:
    """What every image is converted to; found while decoding, so that files are read once."""

    mode: str
    size: tuple[int, int]
    fixed: bool  # images of another size are resized to this one

    @classmethod
    def of(cls, picture: Picture) -> _Frame:
        with _image(picture) as image:
            return cls("L", image.size, False).holding(image)

    def holding(self, image: Image) -> _Frame:
        """This frame if it can hold the image, otherwise the one that can."""
        mode = self.mode if image.mode in _GREY else "RGB"
        if self.fixed or image.size == self.size:
            return replace(self, mode=mode)
        return _Frame(mode, (COMMON_SIZE, COMMON_SIZE), True)


def _image(picture: Picture) -> Image:
    """An opened image, pixels not read yet unless the camera's turn had to be undone."""
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        image = Image.open(BytesIO(picture) if isinstance(picture, bytes) else picture)
        # Asking a PNG for its EXIF data would decode it, and no camera writes PNG.
        turned = image.format != "PNG" and image.getexif().get(_ORIENTATION, 1) != 1
        return ImageOps.exif_transpose(image) if turned else image
    except (OSError, UnidentifiedImageError):
        raise _unreadable(picture) from None


def _fill(x: np.ndarray, pictures: Iterable[Picture], frame: _Frame) -> _Frame | None:
    """Decode into `x`; at the first image the frame cannot hold, stop and return one that can."""
    for row, picture in zip(x, pictures, strict=True):
        with _image(picture) as image:
            wider = frame.holding(image)
            if wider != frame:
                return wider
            row[:] = _pixels(image, picture, frame)
    return None


def _pixels(image: Image, picture: Picture, frame: _Frame) -> np.ndarray:
    from PIL.Image import Resampling

    try:
        converted = image.convert(frame.mode)
    except OSError:
        raise _unreadable(picture) from None
    if converted.size != frame.size:
        converted = converted.resize(frame.size, Resampling.BILINEAR)
    pixels = np.asarray(converted)
    return pixels[None] if frame.mode == "L" else pixels.transpose(2, 0, 1)


def _unreadable(picture: Picture) -> BadInput:
    what = picture if isinstance(picture, Path) else "an image of the data set"
    return BadInput(f"cannot decode {what}; it is damaged or no image: remove or replace it")


def _columns(path: Path) -> dict[str, np.ndarray]:
    import datasets

    reader = {".csv": datasets.Dataset.from_csv, ".parquet": datasets.Dataset.from_parquet}
    with scratch_folder() as scratch, offline():
        try:
            table = reader[path.suffix](str(path), cache_dir=str(scratch))
        except (OSError, ValueError, datasets.exceptions.DatasetsError) as e:
            raise BadInput(f"cannot read the table {path}: {first_line(e)}") from None
        return {name: column(table, name) for name in table.column_names}


@contextmanager
def offline() -> Iterator[None]:
    """Keep `datasets` from the network and the terminal: what is read here is on this disk."""
    import datasets
    from huggingface_hub import constants

    switches = (datasets.config, "HF_HUB_OFFLINE"), (constants, "HF_HUB_OFFLINE")
    before = [getattr(module, name) for module, name in switches]
    bars = datasets.is_progress_bar_enabled()
    try:
        for module, name in switches:
            setattr(module, name, True)
        datasets.disable_progress_bars()
        yield
    finally:
        for (module, name), value in zip(switches, before, strict=True):
            setattr(module, name, value)
        if bars:
            datasets.enable_progress_bars()


def column(table: Any, name: str) -> np.ndarray:
    """One column of a `datasets` table as an array of its own."""
    arrow = table.select_columns([name]).with_format("arrow")[:]
    return np.array(arrow.column(name).to_numpy())


def _pick(columns: Mapping[str, Any], wanted: Sequence[str], path: Path) -> str:
    for name in wanted:
        if name in columns:
            return name
    shown = " or ".join(repr(w) for w in wanted)
    raise BadInput(
        f"{path} has no label column {shown}{suggestion(wanted[0], columns)}; name it by label=..."
    )


def first_line(error: Exception) -> str:
    """What a library's error says, without what it wraps around it."""
    return str(error.__cause__ or error).strip().split("\n")[0]
