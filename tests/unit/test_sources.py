"""Data sources: the embedded digits, mirrors of hub repositories, a user's own files, the cache."""

from __future__ import annotations

import gzip
import io
import json
import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom.data import cache, federate, hub, images
from fedloom.data.hub import DOMAINNET10
from fedloom.data.load import load, names
from fedloom.data.source import Source
from fedloom.data.text import tokenize
from fedloom.errors import BadInput, UnknownName

REAL = os.environ.get("FEDLOOM_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="FEDLOOM_DATA is not set")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty FEDLOOM_DATA of the test's own."""
    monkeypatch.setenv("FEDLOOM_DATA", str(tmp_path / "mirror"))
    (tmp_path / "mirror").mkdir()
    return tmp_path / "mirror"


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", refuse)


def png(seed: int, size: tuple[int, int] = (8, 8), mode: str = "RGB") -> bytes:
    from PIL import Image

    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_split(
    file: Path,
    labels: Sequence[int],
    class_names: Sequence[str],
    *,
    label: str = "label",
    image: str = "image",
    size: tuple[int, int] = (8, 8),
    mode: str = "RGB",
    **columns: Any,
) -> None:
    """A parquet file with the schema of a hub repository of images."""
    import datasets

    extra = {k: v[0] for k, v in columns.items()}
    features = datasets.Features(
        {
            image: datasets.Image(),
            label: datasets.ClassLabel(names=list(class_names)),
            **{k: v[1] for k, v in columns.items()},
        }
    )
    images = [{"bytes": png(i, size, mode), "path": None} for i in range(len(labels))]
    file.parent.mkdir(parents=True, exist_ok=True)
    data = {image: images, label: list(labels), **extra}
    datasets.Dataset.from_dict(data, features=features).to_parquet(str(file))


def small_arrays(n: int = 6) -> tuple[np.ndarray, np.ndarray]:
    return np.arange(n * 3, dtype=np.float32).reshape(n, 3), np.arange(n) % 2


# --- digits ------------------------------------------------------------------------------------


def test_digits_are_exact_in_uint8() -> None:
    from sklearn.datasets import load_digits

    source = load("digits")
    assert source.x.shape == (1797, 1, 8, 8)
    assert source.x.dtype == np.uint8
    assert source.y.dtype == np.int64
    assert source.class_names == tuple("0123456789")
    assert source.normalize == "half"
    assert np.array_equal(source.x.reshape(-1, 64) / 15, load_digits().data)


def test_names_ignore_case_and_hyphens() -> None:
    assert load("Digits").fingerprint == load("digits").fingerprint
    assert {"digits", "har", "domainnet10"} <= set(names())


def test_classes_are_kept_in_the_order_given() -> None:
    whole, two = load("digits"), load("digits", classes=("7", 3))
    assert two.class_names == ("7", "3")
    assert len(two) == np.isin(whole.y, (7, 3)).sum()
    assert np.array_equal(two.x[two.y == 0], whole.x[whole.y == 7])
    assert load("digits", classes="7").class_names == ("7",)


# --- the real data sets ------------------------------------------------------------------------

REAL_SETS = [
    # name, rows, official test rows, input shape, classes, domains, users
    ("fashion_mnist", 70_000, 10_000, (1, 28, 28), 10, 0, 0),
    ("cifar100", 60_000, 10_000, (3, 32, 32), 100, 0, 0),
    ("pacs", 9_991, None, (3, 64, 64), 7, 4, 0),
    ("office_caltech10", 2_533, None, (3, 64, 64), 10, 4, 0),
    ("usps", 9_298, 2_007, (1, 16, 16), 10, 0, 0),
    ("ag_news", 7_600, None, (200,), 4, 0, 0),
    ("har", 10_411, None, (6, 128), 6, 0, 30),
]


@needs_data
@pytest.mark.parametrize(
    ("name", "rows", "test", "shape", "classes", "domains", "users"),
    REAL_SETS,
    ids=[r[0] for r in REAL_SETS],
)
def test_real_data_set(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    rows: int,
    test: int | None,
    shape: tuple[int, ...],
    classes: int,
    domains: int,
    users: int,
) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(REAL))
    source = load(name)
    assert (len(source), source.shape, source.classes) == (rows, shape, classes)
    assert set(np.unique(source.y)) == set(range(classes))
    assert (None if source.official_test is None else source.official_test.sum()) == test
    assert len(source.domain_names) == domains
    assert (source.user is None) == (users == 0)
    if source.user is not None:
        assert set(np.unique(source.user)) == set(range(users))
    assert len(pickle.dumps(source)) < 4_000
    began = time.perf_counter()
    again = load(name, normalize="channel")
    assert time.perf_counter() - began < 1.0
    assert again.fingerprint == source.fingerprint


# --- hub repositories that are absent here, by schema --------------------------------------------


def test_emnist_letters_a_to_j(mirror: Path) -> None:
    """FedCR's EMNIST-L: the first ten of 26 letters, train and test merged."""
    letters = [chr(65 + i) for i in range(26)]
    for split, labels in (("train", list(range(26)) * 2), ("test", list(range(26)))):
        file = mirror / "emnist" / "letters" / f"{split}.parquet"
        write_split(file, labels, letters, mode="L", size=(28, 28))
    whole = load("emnist", subset="letters")
    assert (len(whole), whole.shape, whole.classes) == (78, (1, 28, 28), 26)
    first = load("emnist", subset="letters", classes=letters[:10])
    assert (len(first), first.class_names) == (30, tuple(letters[:10]))
    assert first.official_test is not None
    assert first.official_test.sum() == 10


def test_letters_in_one_expression(mirror: Path) -> None:
    for split in ("train", "test"):
        file = mirror / "emnist" / "letters" / f"{split}.parquet"
        write_split(file, [0, 1, 2], "ABC", mode="L", size=(28, 28))
    letters = load("emnist(subset=letters, classes=[C, A])")
    assert (letters.name, len(letters), letters.class_names) == ("emnist", 4, ("C", "A"))
    assert load("emnist(subset=letters, classes=C)").class_names == ("C",)
    with pytest.raises(BadInput, match="takes only subset, classes, vocabulary, positions by name"):
        load("emnist(letters)")


def write_idx(file: Path, values: np.ndarray, zipped: bool = True) -> None:
    """An IDX file: two zeros, 8 for bytes, the number of axes, their lengths, the bytes."""
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    content = head + values.astype(np.uint8).tobytes()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(content) if zipped else content)


def write_emnist(folder: Path, train: int = 124, test: int = 62, zipped: bool = True) -> None:
    for split, n in (("train", train), ("test", test)):
        name, end = f"emnist-byclass-{split}", ".gz" if zipped else ""
        pixels = np.arange(n * 784).reshape(n, 28, 28) % 256
        write_idx(folder / f"{name}-images-idx3-ubyte{end}", pixels, zipped)
        write_idx(folder / f"{name}-labels-idx1-ubyte{end}", np.arange(n) % 62, zipped)


@pytest.mark.parametrize("zipped", [True, False])
def test_emnist_by_class_has_its_published_test_rows(mirror: Path, zipped: bool) -> None:
    """As NIST publishes it: FedPAC's EMNIST, 62 characters in the order 0-9, A-Z, a-z."""
    write_emnist(mirror / "emnist" / "gzip", zipped=zipped)
    source = load("emnist")
    assert (source.shape, len(source), source.classes) == ((1, 28, 28), 186, 62)
    assert "".join(source.class_names[i] for i in (0, 9, 10, 35, 36, 61)) == "09AZaz"
    assert source.official_test is not None
    assert source.official_test.tolist() == [False] * 124 + [True] * 62
    assert source.x[1, 0, 0, :3].tolist() == [16, 17, 18]  # 784 = 3 * 256 + 16
    assert source.y[[10, 134]].tolist() == [10, 10]
    assert load("emnist", classes=["a", "B"]).y.tolist() == [1, 0, 1, 0, 1, 0]
    split = "fedpac(test_size=5, sharing=true)"
    data = federate(source, "dominant(groups=emnist, size=10, sharing=true)", 3, split=split)
    assert data.partition.packed.sizes.tolist() == [[10, 0, 5]] * 3
    with pytest.raises(BadInput, match="emnist is read from IDX files as it is; leave image_size"):
        load("emnist", image_size=32)


def test_emnist_comes_from_the_hub_as_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    write_emnist(tmp_path / "snapshot")
    asked = []

    def download(repo: str, **options: str) -> str:
        asked.append((repo, options["repo_type"]))
        return str(tmp_path / "snapshot")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert len(load("emnist")) == 186
    assert asked == [("Royc30ne/emnist-byclass", "dataset")]


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda f: f.write_bytes(b"\x1f\x8b cut off"), "cannot read .*train-images.*; download"),
        (lambda f: f.write_bytes(bytes([0, 0, 13, 1])), "it is no IDX file of bytes"),
        (lambda f: f.write_bytes(b""), "cannot read .*train-images.*; download it again"),
        (lambda f: f.unlink(), "no file emnist-byclass-train-images-idx3-ubyte.gz; put all four"),
        (lambda f: write_idx(f, np.zeros((3, 28, 28))), "3 train images and 124 labels"),
    ],
)
def test_damaged_idx_files(mirror: Path, spoil: Callable[[Path], object], sentence: str) -> None:
    write_emnist(mirror / "emnist")
    spoil(mirror / "emnist" / "emnist-byclass-train-images-idx3-ubyte.gz")
    with pytest.raises(BadInput, match=sentence):
        load("emnist")


@pytest.mark.parametrize("name", ["femnist", "emnist"])
def test_femnist_has_writers(mirror: Path, name: str) -> None:
    """A folder `emnist` may hold the same characters in that repository's form."""
    import datasets

    write_split(
        mirror / name / "train.parquet",
        list(range(62)),
        hub.CHARACTERS,
        label="character",
        mode="L",
        writer_id=([f"w{i % 5}" for i in range(62)], datasets.Value("string")),
    )
    source = load(name)
    assert source.classes == 62
    assert source.official_test is None
    assert source.user is not None
    assert source.user.max() == 4


def test_cinic10_merges_three_splits(mirror: Path) -> None:
    for split in ("train", "validation", "test"):
        write_split(mirror / "cinic10" / f"{split}.parquet", [0, 1, 2], "abc", size=(32, 32))
    source = load("cinic10")
    assert source.x.shape == (9, 3, 32, 32)
    assert source.official_test is not None
    assert source.official_test.tolist() == [False] * 6 + [True] * 3


def test_tiny_imagenet_tests_on_its_validation_split(mirror: Path) -> None:
    data = mirror / "tiny_imagenet" / "data"
    write_split(data / "train-00000-of-00001.parquet", [0, 1, 0], ["n01", "n02"], size=(64, 64))
    # The real set holds some grey images: they get three channels like the others.
    write_split(data / "valid-00000-of-00001.parquet", [1], ["n01", "n02"], size=(64, 64), mode="L")
    source = load("tiny-imagenet")
    assert source.x.shape == (4, 3, 64, 64)
    assert source.official_test is not None
    assert source.official_test.tolist() == [False, False, False, True]


def test_office_home_is_resized(mirror: Path) -> None:
    import datasets

    domains = ["Art", "Clipart", "Product", "Real World"]
    write_split(
        mirror / "office_home" / "train.parquet",
        [0, 1, 0, 1],
        ["Alarm_Clock", "Backpack"],
        size=(50, 30),
        domain=(domains, datasets.Value("string")),
    )
    source = load("office_home")
    assert source.shape == (3, 64, 64)
    assert source.domain_names == tuple(domains)
    assert load("office_home", image_size=16).shape == (3, 16, 16)


def test_domainnet10_keeps_ten_classes(mirror: Path) -> None:
    """The repository writes some names with a space; labels follow the paper's order."""
    import datasets

    classes = ["zebra", "airplane", *(n.replace("_", " ") for n in DOMAINNET10[:-1])]
    domains = datasets.ClassLabel(names=["clipart", "infograph", "painting"])
    write_split(
        mirror / "domainnet10" / "train.parquet", range(11), classes, domain=([2] * 11, domains)
    )
    write_split(mirror / "domainnet10" / "test.parquet", [0, 1], classes, domain=([0, 1], domains))
    source = load("domainnet10")
    assert source.classes == 10
    assert source.y.tolist() == [9, *range(9), 9]
    assert source.domain_names == ("clipart", "infograph", "painting")
    assert source.domain is not None
    assert source.domain.tolist() == [2] * 10 + [0]


def test_mirror_may_be_saved_to_disk_or_be_images(mirror: Path) -> None:
    import datasets

    write_split(mirror / "one.parquet", [0, 1], "ab")
    dataset = datasets.Dataset.from_parquet(str(mirror / "one.parquet"))
    datasets.DatasetDict({"train": dataset}).save_to_disk(str(mirror / "mnist"))
    assert len(load("mnist")) == 2
    for domain in ("art", "photo"):
        (mirror / "pacs" / domain / "dog").mkdir(parents=True)
        (mirror / "pacs" / domain / "dog" / "1.png").write_bytes(png(1))
    assert load("pacs").domain_names == ("art", "photo")


def test_har_as_published_has_nine_channels(mirror: Path) -> None:
    for split, rows in (("train", 4), ("test", 2)):
        folder = mirror / "har" / "UCI HAR Dataset" / split
        (folder / "Inertial Signals").mkdir(parents=True)
        for i, signal in enumerate(hub._INERTIAL):
            values = np.full((rows, 128), float(i))
            np.savetxt(folder / "Inertial Signals" / f"{signal}_{split}.txt", values)
        np.savetxt(folder / f"y_{split}.txt", np.arange(rows) + 1 + (0 if rows == 4 else 4))
        np.savetxt(folder / f"subject_{split}.txt", np.full(rows, rows))
    source = load("har", normalize="none")
    assert source.x.shape == (6, 9, 128)
    assert source.x[0, :, 0].tolist() == list(range(9))
    assert source.class_names == hub.ACTIVITIES
    assert source.official_test is not None
    assert source.official_test.sum() == 2


def test_mirror_is_read_without_the_network(mirror: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets
    from huggingface_hub import constants

    write_split(mirror / "mnist" / "train.parquet", [0, 1], "ab", mode="L")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    seen = []
    original = datasets.load_dataset

    def watched(*args: Any, **kwargs: Any) -> Any:
        seen.append((datasets.config.HF_HUB_OFFLINE, constants.HF_HUB_OFFLINE))
        return original(*args, **kwargs)

    monkeypatch.setattr(datasets, "load_dataset", watched)
    load("mnist")
    assert seen == [(True, True)]
    assert datasets.config.HF_HUB_OFFLINE is False


# --- text ----------------------------------------------------------------------------------------


def test_tokens_by_frequency() -> None:
    """`the` three times, `cat` and `.` twice, the rest once: `.` sorts before `cat`; ids from 2."""
    ids, known = tokenize(["The cat sat.", "the cat; the dog."], vocabulary=5, positions=6)
    assert ids.tolist() == [[2, 4, 1, 3, 0, 0], [2, 4, 2, 1, 3, 0]]
    assert (ids.dtype, known) == (np.int32, ("the", ".", "cat"))


def test_ag_news_options(mirror: Path) -> None:
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["World", "Sports"])}
    )
    data = {"text": ["a b c", "a d"], "label": [1, 0]}
    (mirror / "ag_news").mkdir()
    table = datasets.Dataset.from_dict(data, features=features)
    table.to_parquet(str(mirror / "ag_news" / "train.parquet"))
    source = load("ag_news", positions=2, vocabulary=4)
    assert (source.kind, source.vocabulary) == ("text", 4)
    assert source.x.tolist() == [[2, 3], [2, 1]]
    assert source.normalize == "none"
    with pytest.raises(BadInput, match="positions=0"):
        load("ag_news", positions=0)


# --- a user's own --------------------------------------------------------------------------------


def test_arrays_say_what_they_are() -> None:
    y = [0, 1]
    bytes_, floats = np.zeros((2, 5, 5, 3), np.uint8), np.ones((2, 3, 5))
    assert Source.from_arrays(bytes_, y).x.shape == (2, 3, 5, 5)
    assert Source.from_arrays(bytes_[..., 0], y).x.shape == (2, 1, 5, 5)
    assert Source.from_arrays(floats, y).kind == "signal"
    assert Source.from_arrays(floats[..., 0], y).kind == "table"
    text = Source.from_arrays(np.array([[2, 5], [1, 0]]), y, kind="text")
    assert (text.x.dtype, text.vocabulary) == (np.int32, 6)


def test_normalisation_follows_from_the_kind_of_input() -> None:
    pixels, numbers, y = np.zeros((2, 1, 3, 3), np.uint8), np.zeros((2, 3)), [0, 1]
    assert load((pixels, y)).normalize == "half"
    assert load((pixels / 255, y)).normalize == "channel"
    assert load((numbers, y)).normalize == "channel"
    assert load((numbers, y), normalize="site").normalize == "site"


def test_string_and_sparse_labels_are_coded() -> None:
    x = np.zeros((3, 2))
    assert load((x, ["b", "a", "b"])).y.tolist() == [1, 0, 1]
    sparse = load((x, [7, 3, 7]))
    assert (sparse.y.tolist(), sparse.class_names) == ([1, 0, 1], ("3", "7"))
    site = load((x, ["b", "b", "b"]), class_names=("a", "b", "c"))
    assert (site.y.tolist(), site.classes) == ([1, 1, 1], 3)


def test_npz(tmp_path: Path) -> None:
    x, y = small_arrays()
    np.savez(
        tmp_path / "own.npz",
        x=x,
        y=y,
        user=[9, 9, 4, 4, 7, 7],
        domain=["u", "v"] * 3,
        test=y.astype(bool),
    )
    source = load(tmp_path / "own.npz")
    assert source.name == "own"
    assert source.user is not None
    assert source.user.tolist() == [2, 2, 0, 0, 1, 1]
    assert source.domain_names == ("u", "v")
    assert source.official_test is not None
    assert source.official_test.tolist() == y.astype(bool).tolist()


def write_images(folder: Path, *files: str, size: tuple[int, int] = (8, 8)) -> Path:
    for i, name in enumerate(files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(png(i, size))
    return folder


def test_folder_of_classes(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "own", "cat/1.png", "cat/2.png", "dog/1.png")
    source = load(str(folder))
    assert (source.class_names, source.y.tolist()) == (("cat", "dog"), [0, 0, 1])
    assert source.x.shape == (3, 3, 8, 8)
    assert source.domain is None


def test_folder_of_domains_with_unlike_sizes(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "own", "art/cat/1.png", "art/dog/1.png", "photo/cat/1.png")
    write_images(folder, "photo/dog/1.png", size=(20, 10))
    source = load(folder)
    assert source.domain_names == ("art", "photo")
    assert source.shape == (3, images.COMMON_SIZE, images.COMMON_SIZE)
    assert load(folder, image_size=12).shape == (3, 12, 12)


def test_folder_of_splits(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "own", "train/cat/1.png", "train/dog/1.png", "test/cat/1.png")
    source = load(folder)
    assert source.domain is None
    assert source.official_test is not None
    assert source.official_test.tolist() == [True, False, False]


def test_grey_then_coloured_images_get_three_channels(tmp_path: Path) -> None:
    folder = write_images(tmp_path / "own", "cat/1.png", "cat/2.png")
    (folder / "cat" / "1.png").write_bytes(png(0, mode="L"))
    source = load(folder)
    assert source.shape == (3, 8, 8)
    assert (source.x[0, 0] == source.x[0, 1]).all()


def test_a_turned_photograph_is_upright(tmp_path: Path) -> None:
    from PIL import Image

    folder = tmp_path / "own" / "cat"
    folder.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera lay on its side
    Image.new("RGB", (8, 4)).save(folder / "1.jpg", exif=exif)
    assert load(folder.parent).shape == (3, 8, 4)


CSV = (
    "age,client,dose,domain,label\n30,s1,0.5,north,ill\n40,s2,1.5,south,well\n50,s1,2.5,north,ill\n"
)


def test_csv(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(CSV)
    source = load(tmp_path / "own.csv")
    assert source.kind == "table"
    assert source.x.tolist() == [[30, 0.5], [40, 1.5], [50, 2.5]]
    assert (source.class_names, source.y.tolist()) == (("ill", "well"), [0, 1, 0])
    assert source.user is not None
    assert source.user.tolist() == [0, 1, 0]
    assert source.domain_names == ("north", "south")
    assert source.normalize == "channel"


def test_parquet_with_another_label_column(tmp_path: Path) -> None:
    import datasets

    table = datasets.Dataset.from_dict({"a": [1.0, 2.0], "outcome": [0, 1]})
    table.to_parquet(str(tmp_path / "own.parquet"))
    source = load(tmp_path / "own.parquet", label="outcome")
    assert source.x.tolist() == [[1.0], [2.0]]


def test_a_folder_of_fedloom_data_by_name(mirror: Path) -> None:
    write_images(mirror / "ours", "cat/1.png", "dog/1.png")
    assert load("ours").classes == 2


# --- cache and processes -------------------------------------------------------------------------


def test_second_load_does_not_decode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_images(tmp_path / "own", "cat/1.png", "dog/1.png")
    first = load(folder)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("decoded twice")

    monkeypatch.setattr(images, "decode", fail)
    second = load(folder)
    assert isinstance(second.x, np.memmap)
    assert second.path == first.path
    assert np.array_equal(first.x, second.x)


def test_cache_key_follows_files_and_options(mirror: Path) -> None:
    file = mirror / "mnist" / "train.parquet"
    write_split(file, [0, 1], "ab", mode="L")
    first = load("mnist")
    assert load("mnist", image_size=4).path != first.path
    assert load("mnist", classes="a").path != first.path
    assert load("mnist", normalize="none").path == first.path
    write_split(file, [0, 1, 1], "ab", mode="L")
    assert len(load("mnist")) == 3
    later = file.stat().st_mtime + 10
    os.utime(file, (later, later))
    assert load("mnist").path != first.path


def test_meta_holds_the_fingerprint(tmp_path: Path) -> None:
    x, y = small_arrays()
    source = Source.from_arrays(x, y)
    mapped = source.memory_mapped()
    assert mapped.path is not None
    assert json.loads((mapped.path / "meta.json").read_text())["fingerprint"] == source.fingerprint
    assert mapped.fingerprint == source.fingerprint
    assert Source.from_arrays(x + 1, y).fingerprint != source.fingerprint
    assert Source.from_arrays(x, y, class_names=("a", "b")).fingerprint != source.fingerprint
    assert mapped.memory_mapped() is mapped
    assert list(cache.cache_root().glob(".tmp-*")) == []


def test_pickle_sends_the_path_only() -> None:
    source = Source.from_arrays(np.zeros((500, 100)), np.zeros(500), user=np.arange(500))
    mapped = source.memory_mapped().normalized("half")
    sent = pickle.dumps(mapped)
    assert len(sent) < 1_000
    back = pickle.loads(sent)
    assert isinstance(back.x, np.memmap)
    assert (back.normalize, back.name, back.path) == ("half", mapped.name, mapped.path)
    assert np.array_equal(back.user, mapped.user)
    whole = pickle.loads(pickle.dumps(source))
    assert np.array_equal(whole.x, source.x)


def test_replaced_arrays_are_not_mistaken_for_the_cached_ones() -> None:
    """`replace` keeps `path`; what was put in must survive the way to another process."""
    mapped = Source.from_arrays(*small_arrays()).memory_mapped()
    for changed in (replace(mapped, x=mapped.x + 1), replace(mapped, x=mapped.x[::-1])):
        assert np.array_equal(pickle.loads(pickle.dumps(changed)).x, changed.x)
        assert changed.fingerprint != mapped.fingerprint
    renamed = replace(mapped, class_names=("a", "b"))
    assert pickle.loads(pickle.dumps(renamed)).class_names == ("a", "b")
    assert renamed.fingerprint != mapped.fingerprint


def _load_length(path: str) -> tuple[int, str]:
    source = load(path)
    return len(source), source.fingerprint


def test_two_processes_may_race(tmp_path: Path) -> None:
    files = [f"{c}/{i}.png" for c in "ab" for i in range(40)]
    folder = write_images(tmp_path / "own", *files)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        results = pool.map(_load_length, [str(folder)] * 4, chunksize=1)
    assert {r[0] for r in results} == {80}
    assert len(set(results)) == 1
    assert len(list(cache.cache_root().iterdir())) == 1


def test_the_slower_of_two_writers_discards_its_copy(own_cache: Path) -> None:
    own_cache.mkdir()
    for text in ("first", "second"):
        with cache.scratch_folder() as scratch:
            (scratch / "a").write_text(text)
            cache.publish(scratch, own_cache / "entry")
    assert (own_cache / "entry" / "a").read_text() == "first"
    assert [p.name for p in own_cache.iterdir()] == ["entry"]


def test_a_failed_build_leaves_nothing(tmp_path: Path, own_cache: Path) -> None:
    folder = write_images(tmp_path / "own", "cat/1.png", "cat/2.png")
    (folder / "cat" / "2.png").write_bytes(b"no image")
    with pytest.raises(BadInput, match=r"cannot decode .*2\.png"):
        load(folder)
    assert list(own_cache.iterdir()) == []


# --- errors --------------------------------------------------------------------------------------


def test_unknown_name() -> None:
    with pytest.raises(UnknownName, match=r"did you mean 'cifar10'\?.*path.*FEDLOOM_DATA"):
        load("cifr10")
    with pytest.raises(BadInput, match=r"no file or folder .*nothing\.csv"):
        load("some/nothing.csv")
    with pytest.raises(BadInput, match="cannot load data from int"):
        load(3)


def test_unknown_subset_class_and_normalisation() -> None:
    with pytest.raises(UnknownName, match=r"unknown subset of emnist 'leters'.*letters"):
        load("emnist", subset="leters")
    with pytest.raises(UnknownName, match="subset of mnist"):
        load("mnist", subset="letters")
    with pytest.raises(UnknownName, match="unknown class 'ten'"):
        load("digits", classes=["ten"])
    with pytest.raises(BadInput, match="each class only once"):
        load("digits", classes=[1, 1])
    with pytest.raises(UnknownName, match="unknown normalisation 'halve'; did you mean 'half'"):
        load("digits", normalize="halve")  # type: ignore[arg-type]


def test_missing_mirror_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", "/nowhere/at/all")
    with pytest.raises(BadInput, match="FEDLOOM_DATA names /nowhere/at/all, which is no folder"):
        load("mnist")


@pytest.mark.usefixtures("no_hub")
def test_unreachable_hub_says_to_set_the_mirror() -> None:
    with pytest.raises(BadInput, match=r"ylecun/mnist .*reach.*mnist/ and set FEDLOOM_DATA"):
        load("mnist")
    with pytest.raises(BadInput, match=r"'har' is in no hub repository.*FEDLOOM_DATA"):
        load("har")


def test_mirror_without_the_column_or_files(mirror: Path) -> None:
    write_split(mirror / "cifar100" / "train.parquet", [0, 1], "ab", label="coarse_label")
    with pytest.raises(BadInput, match="no label column 'fine_label'; it has: image, coarse_label"):
        load("cifar100")
    (mirror / "mnist").mkdir()
    with pytest.raises(BadInput, match="cannot read data set 'mnist' in"):
        load("mnist")
    (mirror / "har").mkdir()
    with pytest.raises(BadInput, match=r"neither an \.npz file nor UCI HAR"):
        load("har")


def test_bad_arrays() -> None:
    x, y = small_arrays()
    with pytest.raises(BadInput, match="x has 6 rows but y has 5"):
        load((x, y[:5]))
    with pytest.raises(BadInput, match="6 rows but user has 2"):
        Source.from_arrays(x, y, user=[0, 1])
    with pytest.raises(BadInput, match="NaN"):
        load((np.full((2, 2), np.nan), [0, 1]))
    with pytest.raises(BadInput, match=r"not integers \(for example 0.5\)"):
        load((x, y + 0.5), targets="classes")
    with pytest.raises(BadInput, match="has a single 1; give one class"):
        load((x, np.eye(6)))
    with pytest.raises(BadInput, match="missing in some rows"):
        load((x, np.array(["a", None] * 3, dtype=object)))
    with pytest.raises(UnknownName, match="'c'; there are: a, b"):
        load((x, list("abcabc")), class_names=("a", "b"))
    with pytest.raises(BadInput, match="y goes from 0 to 1, but 1 names"):
        load((x, y), class_names=("a",))
    with pytest.raises(BadInput, match=r"shape \(6,\)"):
        load((y, y))
    with pytest.raises(BadInput, match="no rows"):
        load((x[:0], []))
    with pytest.raises(BadInput, match="must be numbers"):
        load((np.array(["a"]), [0]))


def test_bad_files(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", data=np.zeros(3))
    with pytest.raises(BadInput, match=r"a\.npz has no array 'x'; it has: data"):
        load(tmp_path / "a.npz")
    (tmp_path / "b.npz").write_text("text")
    with pytest.raises(BadInput, match=r"cannot read .*b\.npz"):
        load(tmp_path / "b.npz")
    (tmp_path / "c.txt").write_text("text")
    with pytest.raises(BadInput, match=r"cannot tell what .*c\.txt holds"):
        load(tmp_path / "c.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"no images in .*empty; put them in class/"):
        load(tmp_path / "empty")
    with pytest.raises(BadInput, match="unlike depths"):
        load(write_images(tmp_path / "mixed", "a/1.png", "b/c/1.png"))
    with pytest.raises(BadInput, match="image_size must be a positive"):
        load(write_images(tmp_path / "fine", "a/1.png"), image_size=-1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "a,lable\n1,2\n",
            "no label column 'label' or 'target' or 'y'; it has: a, lable; .*--label .* 'lable'",
        ),
        ("label\n1\n", "no feature columns beside 'label'"),
        ("a,b,label\n1,x,0\n", "column 'b' of .* is not numeric"),
        ("a,b,label\n1,,0\n2,3,1\n", "column 'b' of .* has missing"),
        ("a,label\n1,x\n2,\n", "column 'label' of .* is missing in 1 of 2 rows"),
        ("", "cannot read the table"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own.csv").write_text(text)
    with pytest.raises(BadInput, match=message):
        load(tmp_path / "own.csv")


def test_missing_label_column_by_name(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(CSV)
    with pytest.raises(BadInput, match="no label column 'outcome'"):
        load(tmp_path / "own.csv", label="outcome")


def test_damaged_and_unwritable_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mapped = Source.from_arrays(*small_arrays()).memory_mapped()
    assert mapped.path is not None
    (mapped.path / "x.npy").write_bytes(b"cut")
    with pytest.raises(BadInput, match=r"x\.npy in the cache folder .* delete that folder"):
        Source.open(mapped.path)
    (mapped.path / "meta.json").unlink()
    with pytest.raises(BadInput, match=r"meta\.json in the cache folder"):
        Source.open(mapped.path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "file"))
    with pytest.raises(BadInput, match=r"cannot write to the cache folder .*FEDLOOM_CACHE"):
        Source.from_arrays(*small_arrays()).memory_mapped()
