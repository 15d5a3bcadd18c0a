"""Own tables: which column is what, what an input may be, and one sentence for all the rest."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedloom as fl
from fedloom.data import cache, federate, images, load
from fedloom.errors import BadInput, FedloomError, PartitionError
from fedloom.runs.config import RunConfig
from helpers import fedloom

REAL = os.environ.get("FEDLOOM_DATA")
needs_data = pytest.mark.skipif(not REAL, reason="FEDLOOM_DATA is not set")
SITES = ["Turin", "Lyon", "Berlin"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDLOOM_DATA", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def no_bars() -> None:
    datasets.disable_progress_bars()


def patients(n: int = 60) -> pd.DataFrame:
    """Two features; row i is at site i mod 3 and on scanner A or B; every second one is ill."""
    rows = np.arange(n)
    return pd.DataFrame(
        {
            "age": rows * 1.0,
            "dose": rows % 7,
            "hospital": [SITES[i % 3] for i in rows],
            "scanner": ["AB"[i % 2] for i in rows],
            "diagnosis": [["ill", "well"][i % 2] for i in rows],
        }
    )


NAMED = {"label": "diagnosis", "client": "hospital", "domain": "scanner"}


def png(value: int, size: int = 8) -> bytes:
    file = io.BytesIO()
    Image.new("L", (size, size), value).save(file, "PNG")
    return file.getvalue()


def refused(data: Any, **options: Any) -> str:
    """The one sentence of data that cannot be read."""
    with pytest.raises(FedloomError) as caught:
        load(data, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- roles of columns ----------------------------------------------------------------------------


def save(frame: pd.DataFrame, file: str) -> str:
    frame.to_csv(file, index=False) if file.endswith(".csv") else frame.to_parquet(file)
    return file


@pytest.mark.parametrize("form", ["own.csv", "OWN.CSV", "own.parquet", "frame", "dataset"])
def test_columns_by_name(form: str) -> None:
    frame = patients()
    data: Any = {"frame": frame, "dataset": datasets.Dataset.from_pandas(frame)}.get(form)
    if data is None:
        data = save(frame, form.lower())
        data = Path(data).rename(form)
    source = load(data, **NAMED)
    assert source.x.tolist() == frame[["age", "dose"]].to_numpy(np.float32).tolist()
    assert source.class_names == ("ill", "well")
    assert source.user_names == ("Berlin", "Lyon", "Turin")
    assert source.user is not None
    assert [source.user_names[u] for u in source.user] == frame["hospital"].tolist()
    assert source.domain_names == ("A", "B")
    assert source.fingerprint == load(frame, **NAMED).fingerprint


def test_inputs_by_name() -> None:
    frame = patients().assign(patient=range(60))
    source = load(frame, **NAMED, inputs="dose, age")
    assert source.x[5].tolist() == [5, 5]
    assert source.x[8].tolist() == [1, 8]
    assert load(frame, **NAMED, inputs=["dose"]).shape == (1,)


def test_a_missing_column_names_those_there_are_and_the_flag() -> None:
    sentence = refused(patients(), **{**NAMED, "client": "hopital"})
    assert "no client column 'hopital'; it has: age, dose, hospital, scanner, diagnosis" in sentence
    assert "client=... (--client on the command line); did you mean 'hospital'?" in sentence
    assert "--label" in refused(patients())
    assert "--domain" in refused(patients(), **{**NAMED, "domain": "device"})
    assert "--inputs" in refused(patients(), **NAMED, inputs="weight")
    wide = pd.DataFrame(np.zeros((2, 500))).add_prefix("gene")
    assert "gene29 and 470 more;" in refused(wide)


def test_a_column_has_one_role() -> None:
    sentence = refused(patients(), label="diagnosis", client="diagnosis")
    assert "label and client both name the column 'diagnosis'" in sentence
    assert "'age'" in refused(patients(), label="diagnosis", inputs=["age", "age"])
    usual = pd.DataFrame({"user": [3, 4], "y": [0, 1]})
    assert load(usual, inputs="user").user is None
    assert "'y' of the data frame is the label" in refused(usual, inputs="y")
    several = datasets.Dataset.from_dict({"a": [1, 2], "label": [[0, 1], [1]]})
    assert "'label' of the data set cannot be the label: it holds List" in refused(several)


def test_the_usual_names_need_not_be_named() -> None:
    """`user` counts before `client`, which is no feature then; as a label it leaves that role."""
    frame = pd.DataFrame({"a": [1, 2], "client": [5, 6], "user": ["v", "u"], "y": [0, 1]})
    source = load(frame)
    assert (source.shape, source.user_names) == ((1,), ("u", "v"))
    assert load(frame.drop(columns="y"), label="user").user_names == ("5", "6")


@pytest.mark.parametrize("data", ["digits", (np.zeros((2, 2)), [0, 1]), "photos"])
def test_data_without_columns_takes_no_names(data: Any) -> None:
    if data == "photos":
        Path("photos/cat").mkdir(parents=True)
        Path("photos/cat/1.png").write_bytes(png(0))
    assert "client = 'hospital' names a column of a table" in refused(data, client="hospital")


def test_arrays_of_an_npz_by_name() -> None:
    frame = patients()
    np.savez("own.npz", scans=frame[["age", "dose"]], **{k: frame[k] for k in NAMED.values()})
    assert "Object arrays" in refused("own.npz")
    text = {k: frame[k].to_numpy(str) for k in NAMED.values()}
    np.savez("own.npz", scans=frame[["age", "dose"]], **text)
    source = load("own.npz", inputs="scans", **NAMED)
    assert (source.shape, source.user_names) == ((2,), ("Berlin", "Lyon", "Turin"))
    assert "no array 'y'; it has: scans, diagnosis, hospital, scanner" in refused(
        "own.npz", inputs="scans"
    )
    assert "input 'hospital' must be numbers" in refused(
        "own.npz", inputs="scans, hospital", label="diagnosis"
    )


def test_the_index_that_pandas_saves_is_no_feature() -> None:
    frame = patients().drop(columns=["hospital", "scanner"]).iloc[::-1]
    frame.to_csv("own.csv")
    frame.to_parquet("own.parquet")
    for file in ("own.csv", "own.parquet"):
        assert load(file, label="diagnosis").shape == (2,)


# --- images and text -----------------------------------------------------------------------------


def image_rows(n: int = 6) -> dict[str, Any]:
    return {
        "scan": [{"bytes": png(40 * i), "path": None} for i in range(n)],
        "site": [SITES[i % 3] for i in range(n)],
        "label": [i % 2 for i in range(n)],
    }


@pytest.mark.parametrize("schema", ["Image", "struct", "bytes"])
def test_parquet_with_images(schema: str) -> None:
    """As `datasets` writes them, as a plain struct, and as nothing but bytes."""
    rows = image_rows()
    if schema == "bytes":
        rows["scan"] = [one["bytes"] for one in rows["scan"]]
    table = datasets.Dataset.from_dict(rows)
    if schema == "Image":
        table = table.cast_column("scan", datasets.Image())
        table = table.cast_column("label", datasets.ClassLabel(names=["well", "ill"]))
    table.to_parquet("own[1].parquet")
    source = load("own[1].parquet", client="site")
    assert (source.kind, source.shape) == ("image", (1, 8, 8))
    assert source.x[:, 0, 0, 0].tolist() == [0, 40, 80, 120, 160, 200]
    assert source.class_names == (("well", "ill") if schema == "Image" else ("0", "1"))
    assert source.user_names == ("Berlin", "Lyon", "Turin")
    assert load("own[1].parquet", client="site", image_size=4).shape == (1, 4, 4)


def test_images_by_path_start_from_the_table() -> None:
    Path("data").mkdir()
    Path("data/1.png").write_bytes(png(7))
    rows = {"scan": [{"bytes": None, "path": "1.png"}] * 2, "label": [0, 1]}
    datasets.Dataset.from_dict(rows).to_parquet("data/own.parquet")
    assert load("data/own.parquet").x.max() == 7
    Path("data/1.png").write_bytes(png(90))
    assert load("data/own.parquet").x.max() == 90  # not the copy that was decoded before
    Path("data/1.png").unlink()
    assert "1.png, which does not exist" in refused("data/own.parquet", image_size=4)


def test_a_data_set_of_images_in_python() -> None:
    """Rows come in the order of the splits, the test split last; the pixels are in the cache."""
    table = datasets.Dataset.from_dict(image_rows()).cast_column("scan", datasets.Image())
    splits = datasets.DatasetDict(test=table.select([0, 1]), train=table.select([5, 4, 3, 2]))
    source = load(splits, client="site")
    assert source.x[:, 0, 0, 0].tolist() == [200, 160, 120, 80, 0, 40]
    assert source.official_test is not None
    assert source.official_test.tolist() == [False] * 4 + [True] * 2
    assert source.path is not None
    assert source.path.is_dir()
    assert list(cache.cache_root().glob(".tmp-*")) == []
    assert load(table.shuffle(seed=1).with_format("torch"), client="site").classes == 2


def test_images_that_are_missing_or_damaged() -> None:
    rows = image_rows(3)
    rows["scan"][1] = {"bytes": b"no image", "path": None}
    assert "cannot decode the image in row 1" in refused(
        datasets.Dataset.from_dict(rows), client="site"
    )
    rows["scan"][1] = None
    assert "'scan' of the data set lacks some" in refused(
        datasets.Dataset.from_dict(rows), client="site"
    )


TEXTS = ["rain in spain", "snow in spain", "sun and rain", "no snow here"]


@pytest.mark.parametrize("file", ["own.csv", "own.parquet"])
def test_text(file: str) -> None:
    save(pd.DataFrame({"review": TEXTS, "label": list("abab")}), file)
    source = load(file, positions=3)
    assert (source.kind, source.shape, source.classes) == ("text", (3,), 2)
    result = fl.run("fedavg", file, rounds=1, clients=2, partition="iid", split="merged(train=0.5)")
    assert result.experiment.data.kind == "text"


def test_words_are_text_only_where_they_are_named() -> None:
    """A misspelt number, a date or a category is not taken for text."""
    frame = pd.DataFrame({"a": ["1", "2", "x3"], "label": [0, 1, 0]})
    assert "column 'a' of the data frame is not numeric (it holds text)" in refused(frame)
    assert load(frame, inputs="a").kind == "text"


def test_an_input_is_of_one_kind() -> None:
    frame = pd.DataFrame({"age": [1, 2], "review": TEXTS[:2], "label": [0, 1]})
    assert "'review' of the data frame is not numeric (it holds text)" in refused(frame)
    assert load(frame, inputs="age").kind == "table"
    assert load(frame, inputs="review").kind == "text"
    images_and_age = {**image_rows(2), "age": [1, 2]}
    both = datasets.Dataset.from_dict(images_and_age)
    assert "'scan' of the data set is not numeric (it holds images)" in refused(both, client="site")
    assert load(both, client="site", inputs="scan").kind == "image"


def test_a_folder_of_parquet_files_and_one_saved_by_datasets() -> None:
    table = datasets.Dataset.from_pandas(patients())
    Path("own").mkdir()
    table.select(range(40)).to_parquet("own/train.parquet")
    table.select(range(40, 60)).to_parquet("own/test.parquet")
    source = load("own", **NAMED)
    assert source.official_test is not None
    assert source.official_test.tolist() == [False] * 40 + [True] * 20
    table.save_to_disk("saved")
    assert len(load("saved", **NAMED)) == 60


def test_hub_names_in_fedloom_data(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mirror/owner/name").mkdir(parents=True)
    datasets.Dataset.from_pandas(patients()).to_parquet("mirror/owner/name/train.parquet")
    Path("mirror/ylecun/mnist").mkdir(parents=True)
    rows = datasets.Dataset.from_dict({"image": image_rows(2)["scan"], "label": [0, 1]})
    rows.to_parquet("mirror/ylecun/mnist/train.parquet")
    monkeypatch.setenv("FEDLOOM_DATA", "mirror")
    assert len(load("owner/name", **NAMED)) == 60
    assert load("ylecun/mnist").fingerprint == load("mnist").fingerprint
    assert "load_dataset('owner/other')" in refused("owner/other")
    assert "not downloaded" in refused("owner/other")


def test_class_labels_follow_the_names_they_are_to_have() -> None:
    """At one site 0 is `well`, in the federation `ill` comes first."""
    features = datasets.Features(
        a=datasets.Value("float32"), label=datasets.ClassLabel(names=["well", "ill"])
    )
    table = datasets.Dataset.from_dict({"a": [1.0, 2.0], "label": [0, 1]}, features=features)
    assert load(table).y.tolist() == [0, 1]
    assert load(table, class_names=("ill", "odd", "well")).y.tolist() == [2, 0]
    with pytest.raises(BadInput, match="no rows of the classes ill"):
        load(table.select([0]), classes="ill")
    unlabelled = datasets.Dataset.from_dict({"a": [1.0], "label": [-1]}, features=features)
    assert "'label' of the data set is missing in 1 of 1 rows" in refused(unlabelled)


@needs_data
def test_real_images_come_the_same_by_name_path_and_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FEDLOOM_DATA", str(REAL))
    by_name = load("usps")
    folder = Path(str(REAL)) / "usps"
    assert load(folder).fingerprint == by_name.fingerprint
    assert load(datasets.load_dataset(str(folder))).fingerprint == by_name.fingerprint
    assert load("flwrlabs/usps").fingerprint == by_name.fingerprint


@needs_data
def test_real_text_by_path() -> None:
    source = load(Path(str(REAL)) / "ag_news" / "test.parquet", positions=20)
    assert (source.kind, len(source), source.shape) == ("text", 7600, (20,))
    assert source.class_names == ("World", "Sports", "Business", "Sci/Tech")


# --- names of sites ------------------------------------------------------------------------------


def test_sites_keep_their_names_where_they_are_the_clients() -> None:
    source = load(patients(), **NAMED)
    assert federate(source, "by_user").client_names == ["Berlin", "Lyon", "Turin"]
    assert federate(source, "by_domain").client_names == ["A", "B"]
    assert federate(source, "iid", 3).client_names == ["0", "1", "2"]
    assert federate(source, "by_user", shift="permute_labels(groups=2)").client_names[0] == "Berlin"


def test_two_clients_of_a_domain_are_numbered() -> None:
    x, y = np.zeros((80, 2)), np.arange(80) % 4
    source = fl.Source.from_arrays(x, y, domain=np.repeat(["art", "photo"], 40))
    names = federate(source, "by_domain(per_domain=2)").client_names
    assert names == ["art 1", "art 2", "photo 1", "photo 2"]


def test_a_user_that_is_left_out_takes_its_name_along() -> None:
    frame = patients().iloc[:-1]  # Berlin has 19 rows, the others 20
    data = federate(load(frame, **NAMED), "by_user(min_size=20)")
    assert data.client_names == ["Lyon", "Turin"]


def test_by_user_says_how_to_name_the_column() -> None:
    with pytest.raises(PartitionError, match="--client"):
        federate(patients()[["age", "diagnosis"]].rename(columns={"diagnosis": "y"}), "by_user")


# --- what the command line and `run` take --------------------------------------------------------


def test_named_columns_on_the_command_line() -> None:
    patients().to_csv("own.csv", index=False)
    flags = ["--label", "diagnosis", "--client", "hospital", "--domain", "scanner"]
    done = fedloom("partition", "--data", "own.csv", *flags, "--out", "p")
    assert done.code == 0, done
    assert all(site in done.out for site in SITES)
    assert fl.Partition.load("p/partition.json").client_names == ["Berlin", "Lyon", "Turin"]
    done = fedloom("run", "--data", "own.csv", *flags, "rounds=1", "--out", "r", "-q")
    assert done.code == 0, done
    assert fl.Partition.load("r/partition.json").client_names == ["Berlin", "Lyon", "Turin"]
    assert fedloom("resume", "r", "-q").code == 0
    assert "--label" in fedloom("run", "--data", "own.csv", "--out", "x", "-q").err
    columns = ["label=diagnosis", "inputs=age, dose", "partition=iid", "clients=4"]
    done = fedloom("partition", "data=own.csv", *columns)
    assert done.code == 0, done


def test_naming_clients_or_domains_divides_by_them() -> None:
    assert RunConfig.checked({"client": "hospital", "domain": "scanner"}).partition == "by_user"
    assert RunConfig.checked({"domain": "scanner"}).partition == "by_domain"
    assert RunConfig.checked({"client": "hospital", "partition": "iid"}).partition == "iid"
    assert RunConfig.checked({}).partition == "dirichlet(alpha=0.1)"


def test_a_frame_is_run_and_resumed() -> None:
    frame = patients()
    result = fl.run("fedavg", frame, **NAMED, rounds=1, out="r")
    assert result.experiment.data.client_names == ["Berlin", "Lyon", "Turin"]
    again = fl.resume("r", data=frame)
    assert again.summary.state_sha256 == result.summary.state_sha256


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("split", "official"),
        ("clients", 10),
        ("partition", "iid"),
        ("shift", "rotate"),
        ("augment", "flip"),
        ("normalize", "half"),
        ("partition_seed", 1),
        ("client", "hospital"),
    ],
)
def test_data_that_is_divided_is_not_divided_again(key: str, value: Any) -> None:
    data = federate("digits", "iid", 4)
    with pytest.raises(
        BadInput, match=f"^{key} = {value!r} would change nothing.* leave {key} out"
    ):
        fl.run("fedavg", data, rounds=1, **{key: value})
    with pytest.raises(BadInput, match=f"^{key} = "):
        fl.compare(["fedavg"], data, seeds=[0], rounds=1, **{key: value})


def test_settings_that_say_what_the_data_does_are_no_contradiction() -> None:
    """The default values, and the number of clients it has; newcomers are a setting of the run."""
    data = federate("digits", "iid", 4)
    defaults = {"split": "merged(train=0.75)", "partition": "dirichlet(alpha=0.1)", "shift": None}
    result = fl.run("fedavg", data, rounds=1, clients=4, newcomers=1, **defaults)
    assert len(result.clients) == 3


def test_a_source_keeps_its_normalisation() -> None:
    source = load("digits", normalize="none")
    for data in (federate(source, "iid", 4), load(source)):
        assert (getattr(data, "source", data)).normalize == "none"
    result = fl.run("local", source, rounds=1, clients=2, partition="iid")
    assert result.experiment.data.source.normalize == "none"
    assert load(source, normalize="half").normalize == "half"


# --- unreadable, empty, ragged, huge, hostile ----------------------------------------------------


def npy_header(shape: str) -> bytes:
    text = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode()


def bomb(side: int) -> bytes:
    """A PNG of a hundred bytes that claims to have side x side pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    size = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 100))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + pixels + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("a.csv", b"a,b,label\n1,2,0\n1,2,3,4,1\n", "Expected 3 fields in line 3, saw 5"),
        ("a.csv", b"a,label\n1,M\xfcnchen\n", "save it as UTF-8"),
        ("a.csv", b"\0\0\0\0", "cannot read the table"),
        ("a.csv", b"a,label\n1,0,7\n", "more fields than its first line"),
        ("a.csv", b"a,label\n", "has no rows"),
        ("a.csv", b"a;b;label\n1;2;0\n", "separated by ';'"),
        ("a.csv", b"a,label,label\n1,0,0\n", "two columns 'label'"),
        ("a.csv", b"a,client,label\n1,1,0\n2,,1\n", "'client' of .* is missing in 1 of 2 rows"),
        ("a.csv", b"a,label\n1e300,0\n2,1\n", "missing or infinite"),
        ("a.csv", b"a,label\n" + b"9" * 30 + b",0\n", "too large"),
        ("a.parquet", b"", "size is 0 bytes"),
        ("a.parquet", b"PAR1" + b"\xff" * 100 + b"PAR1", "cannot read the table"),
        ("a.npz", b"", "No data left"),
        ("a.npz", npy_header("(3,)") + b"\0" * 24, "cannot read"),
        ("photos/cat/a.png", bomb(60_000), "too many pixels"),
        ("photos/cat/a.png", bomb(100), "cannot decode .*a.png"),
        ("photos/cat/a.gif", b"GIF89a\xff", "cannot decode"),
        ("photos/cat/a.tif", b"II*\0" + b"\xff" * 300, "cannot decode"),
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_bad_files(file: str, content: bytes, message: str) -> None:
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    with pytest.raises(BadInput, match=message):
        load(path.parts[0])


def test_an_archive_that_promises_too_much_or_is_torn() -> None:
    with zipfile.ZipFile("huge.npz", "w") as archive:
        archive.writestr("x.npy", npy_header("(1000000000000, 100)"))
    assert "Unable to allocate" in refused("huge.npz")
    np.savez_compressed("torn.npz", x=np.arange(300.0), y=np.zeros(300))
    content = bytearray(Path("torn.npz").read_bytes())
    content[60:90] = b"\xff" * 30
    Path("torn.npz").write_bytes(content)
    assert "cannot read" in refused("torn.npz")


def test_images_too_large_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("photos/cat").mkdir(parents=True)
    Path("photos/cat/1.png").write_bytes(png(0))
    usage = images.shutil.disk_usage(".")._replace(free=63)
    monkeypatch.setattr(images.shutil, "disk_usage", lambda path: usage)
    assert "1 images of 8x8 pixels" in refused("photos")
    assert "--image-size" in refused("photos")
    assert load("photos", image_size=4).shape == (1, 4, 4)


def test_a_column_may_change_from_whole_numbers_late() -> None:
    Path("own.csv").write_text("a,label\n" + "1,0\n" * 12_000 + "1.5,1\n")
    assert load("own.csv").x.max() == 1.5


def test_arrays_that_are_none() -> None:
    torch = pytest.importorskip("torch")
    assert "are all [T], or all [T, C]" in refused(([[1, 2], [[3]]], [0, 1]))
    assert "x is not an array" in refused((torch.zeros(2, 2, requires_grad=True), [0, 1]))
    assert "holds nothing" in refused((np.zeros((2, 0)), [0, 1]))
    assert "labels are datetime64" in refused(
        (np.zeros((1, 2)), np.array(["2020"], "datetime64[Y]"))
    )
    assert "not integers (for example inf)" in refused((np.zeros((1, 2)), [np.inf]))
    assert load((np.zeros((2, 2)), np.array([b"cat", b"dog"]))).class_names == ("cat", "dog")


def test_frames_and_objects_that_are_no_table() -> None:
    assert "Duplicate column names" in refused(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    assert "cannot read the table the data frame" in refused(pd.DataFrame({"a": [1, "x"]}))
    assert "no rows" in refused(patients().iloc[:0], **NAMED)
    assert "has no feature columns" in refused(pd.DataFrame({"label": [0, 1]}))
    pixels = datasets.Features(x=datasets.Array2D((1, 2), "float32"), label=datasets.Value("int64"))
    shaped = datasets.Dataset.from_dict({"x": [[[1, 2]]], "label": [0]}, features=pixels)
    assert "Array2D" in refused(shaped)
    assert "List" in refused(datasets.Dataset.from_dict({"x": [["a"], ["b"]], "label": [0, 1]}))
    stream = datasets.Dataset.from_pandas(patients()).to_iterable_dataset()
    assert "streaming=True" in refused(stream, **NAMED)
    assert "cannot load data from dict; give a name, a path or a pair" in refused({"x": 1})
    assert "divided over clients already" in _federate_twice()


def _federate_twice() -> str:
    with pytest.raises(BadInput) as caught:
        federate(federate("digits", "iid", 2))
    return str(caught.value)


@pytest.mark.parametrize("name", ["", " ", "a\0b", "x" * 5000, "/dev/null", "x" * 300 + "/y"])
def test_names_that_are_no_path(name: str) -> None:
    assert len(refused(name)) < 500


def test_libraries_do_not_write_to_the_terminal() -> None:
    """`datasets` and the hub's client log what they stumble over, beside our sentence."""
    Path("own").mkdir()
    Path("own/README.md").write_text("no card")
    Path("own/train.parquet").write_bytes(b"PAR1" + b"\xff" * 100 + b"PAR1")
    code = (
        "import fedloom as fl\nfrom fedloom.errors import BadInput\n"
        "try:\n    fl.load('own')\nexcept BadInput as e:\n    print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.startswith("cannot read the table")
