"""`fedloom check`: data before anything is trained, with all that is wrong with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import fedloom as fl
from helpers import fedloom


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    """Three hospitals with forty rows each; four values are missing."""
    gen = np.random.default_rng(0)
    table = pd.DataFrame(
        {
            "age": gen.normal(size=120),
            "dose": gen.normal(size=120),
            "patient": gen.integers(0, 30, 120),
            "hospital": np.repeat(["Berlin", "Lyon", "Turin"], 40),
            "sick": gen.integers(0, 2, 120).astype(float),
        }
    )
    table.loc[[3, 50, 51], "age"] = np.nan
    table.loc[5, "sick"] = np.nan
    path = tmp_path / "patients.csv"
    table.to_csv(path, index=False)
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two domains with two classes of eight pictures, of which one has a copy."""
    gen = np.random.default_rng(0)
    for domain in ("indoors", "outdoors"):
        for kind in ("cat", "dog"):
            folder = tmp_path / "photos" / domain / kind
            folder.mkdir(parents=True)
            for i in range(8):
                pixels = gen.integers(0, 255, (8, 8, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / f"{i}.png")
    first = (tmp_path / "photos" / "indoors" / "dog" / "0.png").read_bytes()
    (tmp_path / "photos" / "outdoors" / "dog" / "copy.png").write_bytes(first)
    return tmp_path / "photos"


def test_sound_data_is_described_and_the_exit_status_is_0() -> None:
    done = fedloom("check", "digits", "--partition", "iid", "--clients", "4")
    assert done.code == 0, done.err
    assert "1,797 (image, 1x8x8 numbers each)" in done.out
    assert "none beyond chance" in done.out
    assert "Nothing that a training would fail on." in done.out


def test_every_missing_value_is_counted_by_column_and_client(patients: Path) -> None:
    named = ("--label", "sick", "--client", "hospital")
    done = fedloom("check", patients, *named, "--json")
    assert done.code == 1
    assert done.record["missing"] == [
        {"column": "sick", "client": "Berlin", "rows": 1},
        {"column": "age", "client": "Berlin", "rows": 1},
        {"column": "age", "client": "Lyon", "rows": 2},
    ]
    # The rest is looked at all the same.
    clients = done.record["clients"]
    assert [(c["name"], c["train"] + c["test"]) for c in clients] == [
        ("Berlin", 38),
        ("Lyon", 38),
        ("Turin", 40),
    ]
    assert "column 'age' lacks values" in fedloom("check", patients, *named).out


def test_a_patient_on_both_sides_is_a_leak(patients: Path) -> None:
    pd.read_csv(patients).dropna().to_csv(patients, index=False)
    named = ("--label", "sick", "--client", "hospital", "--inputs", "age, dose")
    done = fedloom("check", patients, *named, "--group", "patient", "--json")
    assert done.code == 0, done.out
    (leak,) = [remark for remark in done.record["remarks"] if "'patient'" in remark]
    assert leak.startswith("leak: rows of ")
    wrong = fedloom("check", patients, *named, "--group", "pateint")
    assert wrong.code == 1
    assert "has no group column 'pateint'" in wrong.err


def test_all_unreadable_images_are_named_and_the_others_looked_at(photos: Path) -> None:
    (photos / "indoors" / "cat" / "bad.jpg").write_bytes(b"no image")
    (photos / "outdoors" / "dog" / "worse.png").write_bytes(b"\x89PNG nor this")
    (photos / "notes.txt").write_text("not a picture")
    done = fedloom("check", photos, "--json")
    assert done.code == 1
    unreadable = [one["name"] for one in done.record["unreadable"]]
    assert unreadable == ["indoors/cat/bad.jpg", "outdoors/dog/worse.png"]
    assert done.record["rows"] == 33
    assert [c["name"] for c in done.record["clients"]] == ["indoors", "outdoors"]
    remarks = " ".join(done.record["remarks"])
    assert "1 file not read, being no images by name: notes.txt" in remarks
    assert "outdoors/dog/copy.png of outdoors is indoors/dog/0.png of indoors" in remarks


def test_arrays_with_gaps(tmp_path: Path) -> None:
    x = np.ones((20, 3)) * np.arange(20)[:, None]
    x[4, 1], x[7, 1], x[15, 0] = np.nan, np.inf, np.nan
    path = tmp_path / "arrays.npz"
    np.savez(path, x=x, y=np.arange(20) % 2, user=np.repeat(["a", "b"], 10))
    done = fedloom("check", path, "--json")
    assert done.code == 1
    assert done.record["missing"] == [
        {"column": "column 0", "client": "b", "rows": 1},
        {"column": "column 1", "client": "a", "rows": 2},
    ]
    assert done.record["rows"] == 17


@pytest.mark.parametrize(("distinct", "remarked"), [(40, True), (4, False)])
def test_whole_numbers_that_are_hardly_classes_are_remarked(distinct: int, remarked: bool) -> None:
    """Forty numbers over eighty rows are more likely amounts; four are classes."""
    x = np.random.default_rng(0).normal(size=(80, 3)).astype(np.float32)
    y = 100 + np.arange(80) % distinct
    checked = fl.check(fl.FederatedData.from_clients([(x[:40], y[:40]), (x[40:], y[40:])]))
    assert ("add --task regression" in " ".join(checked.remarks)) is remarked


def test_small_clients_and_classes_that_only_a_test_has() -> None:
    x = np.arange(46, dtype=np.float32)[:, None]
    sites = {
        "tiny": (x[:1], [0]),
        "large": (x[1:41], [0, 1] * 20),
        "odd": (x[41:], [0, 1, 2, 3, 4]),
    }
    checked = fl.check(fl.FederatedData.from_clients(sites))
    assert checked.good
    sentences = " ".join(checked.remarks)
    assert "1 client too small for split 'merged(train=0.75)'" in sentences
    assert "no test rows, so that they are not scored there: tiny" in sentences
    facts = next(client for client in checked.clients if client.name == "odd")
    assert len(facts.only_in_test) == 2
    assert "no client has training rows of " in sentences


def test_a_published_test_set_is_noticed_where_it_is_mixed_in(tmp_path: Path) -> None:
    path = tmp_path / "arrays.npz"
    gen = np.random.default_rng(0)
    x, y = gen.normal(size=(60, 3)), np.arange(60) % 2
    np.savez(path, x=x, y=y, test=np.arange(60) >= 45)
    sentence = "a published test set of 15 rows"
    assert sentence in " ".join(fl.check(path, clients=3, partition="iid").remarks)
    apart = fl.check(path, clients=3, partition="iid", split="official")
    assert sentence not in " ".join(apart.remarks)


@pytest.mark.parametrize(
    ("data", "flags", "sentence"),
    [
        ("nowhere.csv", (), "there is no file or folder nowhere.csv"),
        ("digits", ("--partition", "by_user"), "by_user needs data with natural users"),
        ("digits", ("--task", "regression"), "numbers"),
        ("digits", ("--clients", "2000", "--partition", "iid"), "without a single row"),
    ],
)
def test_what_a_training_would_fail_on_is_a_problem(
    data: str, flags: tuple[str, ...], sentence: str
) -> None:
    done = fedloom("check", data, *flags, "--json")
    assert done.code == 1
    assert sentence in " ".join(done.record["problems"])


def test_damaged_files_are_one_sentence_each(tmp_path: Path) -> None:
    for name in ("a.csv", "b.parquet", "c.npz"):
        (tmp_path / name).write_bytes(b"\x00\xff nothing of the kind")
        done = fedloom("check", tmp_path / name, "--json")
        assert done.code == 1
        assert len(done.record["problems"]) == 1
        assert name in done.record["problems"][0]
