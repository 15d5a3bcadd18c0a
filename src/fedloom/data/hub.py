"""The data sets known by name: where the Hugging Face hub has them and what their columns mean.

A folder `FEDLOOM_DATA/<name>` with the files of the hub repository (or the images themselves, as
`domain/class/*.jpg`) is used instead of the hub, without any look-up on the network.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fedloom.data.cache import scratch_folder
from fedloom.data.local import (
    Picture,
    column,
    decode,
    first_line,
    offline,
    picture_files,
    read_images,
    read_npz,
)
from fedloom.data.source import Source, class_codes, code_labels, codes, rows_of_classes
from fedloom.data.text import POSITIONS, VOCABULARY, tokenize
from fedloom.errors import BadInput, UnknownName

DOMAINNET10 = (
    *("bird", "feather", "headphones", "ice_cream", "teapot"),
    *("tiger", "whale", "windmill", "wine_glass", "zebra"),
)
ACTIVITIES = ("walking", "walking_upstairs", "walking_downstairs", "sitting", "standing", "laying")
_INERTIAL = tuple(f"{s}_{a}" for s in ("body_acc", "body_gyro", "total_acc") for a in "xyz")
_BATCH = 500  # images held undecoded at a time


@dataclass(frozen=True)
class HubEntry:
    """One hub repository. Where columns have several names, the first that is there counts."""

    repo: str | None  # None: the hub has none, only FEDLOOM_DATA
    inputs: tuple[str, ...] = ("image", "img")
    label: tuple[str, ...] = ("label",)
    kind: Literal["image", "text", "har"] = "image"
    config: str | None = None
    test: tuple[str, ...] = ("test",)  # splits that are the published test set
    image_size: int | None = None
    classes: tuple[str, ...] = ()  # the classes kept, in this order; none: all


_DOMAINS = HubEntry(None, image_size=64)

KNOWN: dict[str, HubEntry] = {
    "fashion_mnist": HubEntry("zalando-datasets/fashion_mnist"),
    "mnist": HubEntry("ylecun/mnist"),
    "emnist": HubEntry("flwrlabs/femnist", label=("character", "label")),
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
"""`emnist` is EMNIST by class (62 characters) with its writers; its `letters` are a subset. The
letters lie on their side, as published and as the papers trained on them."""

SUBSETS: dict[str, dict[str, HubEntry]] = {
    "emnist": {
        "byclass": KNOWN["emnist"],
        "letters": HubEntry("tanganke/emnist_letters"),
    },
}


@dataclass(frozen=True)
class HubOptions:
    """What of a known data set is wanted; part of the cache key."""

    image_size: int | None = None
    subset: str | None = None
    classes: tuple[str | int, ...] = ()
    vocabulary: int = VOCABULARY
    positions: int = POSITIONS


def hub_entry(name: str, options: HubOptions) -> HubEntry:
    """The table's row for a name and its subset, with the options' size and classes."""
    entry = KNOWN[name]
    if options.subset is not None:
        subsets = SUBSETS.get(name, {})
        if options.subset not in subsets:
            raise UnknownName(f"subset of {name}", options.subset, subsets)
        entry = subsets[options.subset]
    return replace(entry, image_size=options.image_size or entry.image_size)


def mirror(name: str, subset: str | None = None) -> Path | None:
    """The folder of a data set in FEDLOOM_DATA, if that is set and has one."""
    root = os.environ.get("FEDLOOM_DATA")
    if not root:
        return None
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise BadInput(f"FEDLOOM_DATA names {root}, which is no folder; correct or unset it")
    places = [folder / name / (subset or ""), folder / name]
    places += [folder / "hapt"] if name == "har" else []
    return next((p.absolute() for p in places if p.is_dir()), None)


def read(name: str, folder: Path | None, scratch: Path, options: HubOptions) -> Source:
    """The data set from its mirror folder, or from the hub where `folder` is None."""
    entry = hub_entry(name, options)
    if entry.kind == "har" and folder is not None:
        return _read_har(folder).only(options.classes)
    if folder is not None and entry.kind == "image" and picture_files(folder):
        source = read_images(folder, scratch, name=name, image_size=entry.image_size)
        return source.only(entry.classes).only(options.classes)
    with _rows(name, entry, folder) as rows:
        return _read_rows(name, entry, rows, scratch, options)


@dataclass(frozen=True)
class _Rows:
    """All splits as one table, and which rows are the published test set."""

    table: Any
    test: np.ndarray | None
    where: str

    def find(self, names: Sequence[str]) -> str | None:
        return next((n for n in names if n in self.table.column_names), None)

    def need(self, names: Sequence[str]) -> str:
        found = self.find(names)
        if found is None:
            raise BadInput(
                f"{self.where} has no column {' or '.join(map(repr, names))}; "
                f"it has: {', '.join(self.table.column_names)}"
            )
        return found

    def coded(self, name: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """A column's codes and names, as the repository numbers them where it does."""
        values = column(self.table, name)
        names = getattr(self.table.features[name], "names", None)
        return codes(values) if names is None else code_labels(values, names, self.where)

    def take(self, rows: np.ndarray) -> _Rows:
        test = None if self.test is None else self.test[rows]
        return replace(self, table=self.table.select(rows), test=test)


@contextmanager
def _rows(name: str, entry: HubEntry, folder: Path | None) -> Iterator[_Rows]:
    if folder is None:
        yield _joined(_download(name, entry), entry, f"hub repository {entry.repo}")
        return
    with scratch_folder() as scratch, offline():
        yield _joined(_open_mirror(name, folder, scratch), entry, f"{folder}")


def _open_mirror(name: str, folder: Path, scratch: Path) -> Any:
    import datasets

    try:
        if (folder / "dataset_dict.json").is_file():
            return datasets.load_from_disk(str(folder))
        return datasets.load_dataset(str(folder), cache_dir=str(scratch))
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as e:
        raise BadInput(f"cannot read data set {name!r} in {folder}: {first_line(e)}") from None


def _download(name: str, entry: HubEntry) -> Any:
    import datasets

    place = f"put its files in a folder {name}/ and set FEDLOOM_DATA to the folder above"
    if entry.repo is None:
        raise BadInput(f"data set {name!r} is in no hub repository; {place}")
    try:
        return datasets.load_dataset(entry.repo, entry.config)
    except (OSError, ValueError, datasets.exceptions.DatasetsError) as e:
        raise BadInput(
            f"cannot get data set {name!r} from hub repository {entry.repo} ({first_line(e)}); "
            f"connect to the network, or {place}"
        ) from None


def _joined(splits: Any, entry: HubEntry, where: str) -> _Rows:
    import datasets

    order = sorted(splits, key=lambda s: (s in entry.test, s != "train", s))
    test = np.concatenate([np.full(len(splits[s]), s in entry.test) for s in order])
    table = datasets.concatenate_datasets([splits[s] for s in order])
    return _Rows(table, test if test.any() and not test.all() else None, where)


def _read_rows(
    name: str, entry: HubEntry, rows: _Rows, scratch: Path, options: HubOptions
) -> Source:
    inputs = rows.need(entry.inputs)
    y, names = rows.coded(rows.need(entry.label))
    for wanted in (entry.classes, options.classes):
        if wanted:  # before decoding: DomainNet has 345 classes, ten are kept
            kept = class_codes(names, wanted)
            chosen, y = rows_of_classes(y, kept)
            rows, names = rows.take(chosen), tuple(names[c] for c in kept)
    domain, user = rows.find(("domain",)), rows.find(("writer_id", "user"))
    domains, domain_names = rows.coded(domain) if domain else (None, ())
    vocabulary = 0
    if entry.kind == "text":
        texts = column(rows.table, inputs).tolist()
        x, vocabulary = tokenize(texts, options.vocabulary, options.positions)
    else:
        x = _decode_column(rows, inputs, entry.image_size, scratch)
    return Source(
        name=name,
        x=x,
        y=y,
        class_names=names,
        kind="text" if entry.kind == "text" else "image",
        official_test=rows.test,
        domain=domains,
        domain_names=domain_names,
        user=codes(column(rows.table, user))[0] if user else None,
        vocabulary=vocabulary,
    )


def _decode_column(rows: _Rows, name: str, size: int | None, scratch: Path) -> np.ndarray:
    import datasets

    table = rows.table.select_columns([name])
    if isinstance(table.features[name], datasets.Image):
        table = table.cast_column(name, datasets.Image(decode=False))

    def pictures() -> Iterable[Picture]:
        for batch in table.with_format("arrow").iter(_BATCH):
            for stored in batch.column(name).to_pylist():
                yield stored["bytes"] if stored["bytes"] is not None else Path(stored["path"])

    return decode(pictures, len(table), size, scratch)


def _read_har(folder: Path) -> Source:
    """Windows of human activity: an `.npz` of `x` `[n, C, L]`, `y`, `user`, or the files of UCI
    HAR as published (nine inertial signals of 128 samples)."""
    archives = sorted(folder.glob("*.npz"))
    if archives:
        source = read_npz(archives[0], name="har")
    else:
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
