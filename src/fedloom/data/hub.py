"""The data sets known by name: where the Hugging Face hub has them and what their columns mean.

A folder `FEDLOOM_DATA/<name>` with the files of the hub repository (or the images themselves, as
`domain/class/*.jpg`) is used instead of the hub, without any look-up on the network.
"""

from __future__ import annotations

import os
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedloom.data.cache import scratch_folder
from fedloom.data.idx import IdxFiles
from fedloom.data.images import picture_files, read_images
from fedloom.data.local import read_npz
from fedloom.data.options import Options
from fedloom.data.roles import UsualNames, source_of
from fedloom.data.source import Source, class_codes
from fedloom.data.tables import Table, first_line, joined, offline, read_folder
from fedloom.errors import BadInput, UnknownName

DOMAINNET10 = (
    *("bird", "feather", "headphones", "ice_cream", "teapot"),
    *("tiger", "whale", "windmill", "wine_glass", "zebra"),
)
CHARACTERS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
ACTIVITIES = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")
_INERTIAL = tuple(f"{s}_{a}" for s in ("body_acc", "body_gyro", "total_acc") for a in "xyz")


@dataclass(frozen=True)
class HubEntry:
    """One hub repository. Where a column may have several names, the first that is present
    counts."""

    repo: str | None  # None: the hub has none, only FEDLOOM_DATA
    inputs: tuple[str, ...] = ("image", "img")
    label: tuple[str, ...] = ("label",)
    kind: Literal["image", "text", "har"] = "image"
    config: str | None = None
    test: tuple[str, ...] = ("test",)  # splits that are the published test set
    image_size: int | None = None
    classes: tuple[str, ...] = ()  # the only classes to read, in this order; none: all
    idx: str = ""  # what the names of its IDX files begin with, where it is published as such


_DOMAINS = HubEntry(None, image_size=64)

KNOWN: dict[str, HubEntry] = {
    "fashion_mnist": HubEntry("zalando-datasets/fashion_mnist"),
    "mnist": HubEntry("ylecun/mnist"),
    "emnist": HubEntry(
        "Royc30ne/emnist-byclass", label=("label", "character"), idx="emnist-byclass"
    ),
    "femnist": HubEntry("flwrlabs/femnist", label=("character", "label")),
    "cifar10": HubEntry("uoft-cs/cifar10"),
    "cifar100": HubEntry("uoft-cs/cifar100", label=("fine_label",)),
    "cinic10": HubEntry("flwrlabs/cinic10"),
    "tiny_imagenet": HubEntry("zh-plus/tiny-imagenet", test=("valid", "validation"), image_size=64),
    "ag_news": HubEntry("fancyzhx/ag_news", inputs=("text",), kind="text"),
    "pacs": replace(_DOMAINS, repo="flwrlabs/pacs"),
    "office_home": replace(_DOMAINS, repo="flwrlabs/office-home"),
    "domainnet10": replace(_DOMAINS, repo="wltjr1007/DomainNet", classes=DOMAINNET10),
    "office_caltech10": _DOMAINS,
    "usps": HubEntry("flwrlabs/usps"),
    "har": HubEntry(None, kind="har"),
}
"""`emnist` is EMNIST by class (62 characters) with its published test rows (FedPAC); `letters` are
a subset of it, `femnist` are the same characters with their writers and without test rows. The
characters lie on their side, as published and as the papers trained on them."""

SUBSETS: dict[str, dict[str, HubEntry]] = {
    "emnist": {
        "byclass": KNOWN["emnist"],
        "letters": HubEntry("tanganke/emnist_letters"),
    },
}


def hub_entry(name: str, options: Options) -> HubEntry:
    """What is known of a data set, or of a subset of it."""
    entry = KNOWN[name]
    if options.subset is not None:
        subsets = SUBSETS.get(name, {})
        if options.subset not in subsets:
            raise UnknownName(f"subset of {name}", options.subset, subsets)
        entry = subsets[options.subset]
    return entry


def mirror(name: str, subset: str | None = None) -> Path | None:
    """The folder of a data set in FEDLOOM_DATA, if that is set and has one."""
    root = os.environ.get("FEDLOOM_DATA")
    if not root:
        return None
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise BadInput(f"FEDLOOM_DATA names {root}, which is no folder; correct or unset it")
    places = [folder / name / (subset or ""), folder / name]
    if name in KNOWN and (repo := KNOWN[name].repo) is not None:
        places.append(folder / repo)
    if name == "har":
        places.append(folder / "hapt")  # the raw form of the same recordings
    return next((p.absolute() for p in places if is_folder(p)), None)


def is_folder(path: Path) -> bool:
    """Whether a path is a folder; False also for a text that cannot be a path."""
    try:
        return path.is_dir()
    except OSError:
        return False


def name_of_repository(repo: str) -> str | None:
    """The data set that is known by name and comes from this hub repository."""
    return next((name for name, entry in KNOWN.items() if entry.repo == repo), None)


def read(name: str, folder: Path | None, scratch: Path, options: Options) -> Source:
    """The data set from its mirror folder, or from the hub where `folder` is None."""
    entry = hub_entry(name, options)
    if entry.kind == "har" and folder is not None:
        return _read_har(folder, options).only(options.classes)
    size, classes = options.image_size or entry.image_size, _classes(entry, options)
    options = replace(options, image_size=size, classes=classes)
    if folder is not None and entry.kind == "image" and picture_files(folder):
        return read_images(folder, scratch, options, name).only(options.classes)
    if entry.idx and (files := _idx_files(name, entry, folder)) is not None:
        options.columns.refuse_for(f"the IDX files of {name}")
        return files.read(name, CHARACTERS).only(options.classes)
    usual = UsualNames(label=entry.label, client=("writer_id", "user"), inputs=entry.inputs)
    with _opened(name, entry, folder) as table:
        return source_of(table, name, options, scratch, usual)


def _classes(entry: HubEntry, options: Options) -> tuple[str | int, ...]:
    """The classes wanted, of those that the data set keeps."""
    if not entry.classes or not options.classes:
        return options.classes or entry.classes
    return tuple(entry.classes[c] for c in class_codes(entry.classes, options.classes))


@contextmanager
def _opened(name: str, entry: HubEntry, folder: Path | None) -> Iterator[Table]:
    if folder is None:
        yield joined(_download(name, entry), f"hub repository {entry.repo}", entry.test)
        return
    with scratch_folder() as scratch, offline():
        yield joined(_open_mirror(name, folder, scratch), str(folder), entry.test, folder)


def _idx_files(name: str, entry: HubEntry, folder: Path | None) -> IdxFiles | None:
    """The IDX files in a mirror folder, or from the hub; None for a mirror of another form."""
    if folder is not None:
        files = IdxFiles(folder, entry.idx)
        return files if files.present() else None
    import huggingface_hub

    assert entry.repo is not None
    with _hub_errors(name, entry):
        patterns = f"*{entry.idx}*ubyte*"
        place = huggingface_hub.snapshot_download(
            entry.repo, repo_type="dataset", allow_patterns=patterns
        )
    return IdxFiles(Path(place), entry.idx)


def _open_mirror(name: str, folder: Path, scratch: Path) -> Any:
    import datasets

    try:
        return read_folder(folder, scratch)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as e:
        raise BadInput(f"cannot read data set {name!r} in {folder}: {first_line(e)}") from None


def _download(name: str, entry: HubEntry) -> Any:
    import datasets

    if entry.repo is None:
        raise BadInput(f"data set {name!r} is in no hub repository; {_own_folder(name)}")
    with _hub_errors(name, entry):
        return datasets.load_dataset(entry.repo, entry.config)


@contextmanager
def _hub_errors(name: str, entry: HubEntry) -> Iterator[None]:
    """What the hub's libraries raise, as one sentence."""
    import datasets
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    hub_errors = (HfHubHTTPError, LocalEntryNotFoundError, datasets.exceptions.DatasetsError)
    try:
        yield
    except (OSError, ValueError, *hub_errors) as e:
        raise BadInput(
            f"cannot get data set {name!r} from hub repository {entry.repo} ({first_line(e)}); "
            f"connect to the network, or {_own_folder(name)}"
        ) from None


def _own_folder(name: str) -> str:
    return f"put its files in a folder {name}/ and set FEDLOOM_DATA to the folder above"


def _read_har(folder: Path, options: Options) -> Source:
    """Windows of human activity: an `.npz` of `x` `[n, C, L]`, `y`, `user`, or the files of UCI
    HAR as published (nine inertial signals of 128 samples)."""
    archives = sorted(folder.glob("*.npz"))
    if archives:
        source = read_npz(archives[0], options, name="har")
    else:
        options.columns.refuse_for(f"UCI HAR in {folder}")
        roots = [p.parent.parent for p in sorted(folder.rglob("train/y_train.txt"))]
        if not roots:
            raise BadInput(f"{folder} holds neither an .npz file nor UCI HAR's train/ and test/")
        parts = [_uci_split(roots[0] / s, s) for s in ("train", "test")]
        x, y, user = (np.concatenate(both) for both in zip(*parts, strict=True))
        test = np.arange(len(y)) >= len(parts[0][1])
        source = Source.from_arrays(x, y, name="har", user=user, official_test=test)
    return replace(source, class_names=ACTIVITIES) if source.classes == 6 else source


def _uci_split(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    def table(file: str) -> np.ndarray:
        try:
            return np.loadtxt(folder / f"{file}_{split}.txt", dtype=np.float32)
        except (OSError, ValueError) as e:
            raise BadInput(f"cannot read UCI HAR in {folder}: {e}") from None

    x = np.stack([table(f"Inertial Signals/{signal}") for signal in _INERTIAL], axis=1)
    return x, table("y").astype(np.int64), table("subject").astype(np.int64)
