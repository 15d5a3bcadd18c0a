"""Files and modules from elsewhere: imported once, recorded with their digest, refused by name."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from fedloom import extensions
from fedloom.errors import BadInput
from fedloom.extensions import Place, attribute, load_extension, load_extensions, replaced


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working folder; afterwards this process is as if it had imported nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(extensions, "_imported", {})
    monkeypatch.setattr(extensions, "_modules", {})
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def write(path: Path, text: str = "value = 1\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def pinned(path: Path) -> str:
    return f"{path}#sha256={sha256(path.read_bytes()).hexdigest()}"


# ------------------------------------------------------------------ importing


def test_a_file_is_imported_once_and_recorded_with_its_digest(folder: Path) -> None:
    file = write(folder / "own_file.py", "loads = []\nloads.append(1)\n")
    for spec in ("own_file.py", str(file), "./own_file.py", pinned(file)):
        assert load_extension(spec) == ("own_file", pinned(file))
    assert load_extensions(["own_file.py", str(file)]) == (pinned(file),)
    assert attribute("own_file", "loads") == [1]
    assert extensions.loaded() == (pinned(file),)


def test_a_file_may_import_its_neighbours(folder: Path) -> None:
    write(folder / "sub/own_helper.py", "value = 7\n")
    write(folder / "sub/own_main.py", "from own_helper import value\n")
    load_extension("sub/own_main.py")
    assert attribute("own_main", "value") == 7


def test_a_module_is_recorded_by_its_name(folder: Path) -> None:
    assert load_extensions(["json.tool", "json.tool"]) == ("json.tool",)
    assert extensions.loaded() == ("json.tool",)


def test_what_is_imported_already_is_not_imported_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A test or script that imports its file, and then names it to a run."""
    file = write(folder / "own_package/own_module.py")
    write(folder / "own_package/__init__.py", "")
    monkeypatch.syspath_prepend(str(folder))
    import own_package.own_module as module

    load_extension("own_package/own_module.py")
    assert "own_module" not in sys.modules
    module.value = 2
    assert attribute("own_module", "value") == 2
    assert extensions.loaded() == (pinned(file),)


def test_a_file_that_an_editor_changed_in_between_is_not_taken_for_the_old_one(
    folder: Path,
) -> None:
    file = write(folder / "own_edited.py")
    load_extension("own_edited.py")
    write(file, "value = 2\n")
    with pytest.raises(BadInput, match=r"own_edited.py changed after this process imported it"):
        load_extension("own_edited.py")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("value = (\n", r"cannot import .*own_bad.py, line 1 \(SyntaxError: .*\); repair it$"),
        ("value = 1\nvalue.no_such\n", r"own_bad.py, line 2 \(AttributeError: "),
        ("import no_such_module\n", r"own_bad.py, line 1 \(ModuleNotFoundError: No module named"),
        ("from fedloom.errors import BadInput\nraise BadInput('x')", r"line 2 \(BadInput: x\)"),
    ],
)
def test_a_file_that_fails_is_named_with_the_line(folder: Path, text: str, message: str) -> None:
    write(folder / "own_bad.py", text)
    for _ in range(2):
        with pytest.raises(BadInput, match=message):
            load_extension("own_bad.py")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("own_missing.py", r"there is no file own_missing.py to import; give a file.py, or"),
        ("own_missing", r"there is no module 'own_missing' to import; a file is named with its"),
        ("json.no_such", r"there is no module 'json.no_such' to import"),
        ("my-method.py", r"my-method.py cannot be imported under that name; call it like"),
        ("json.py", r"json.py is called like the module 'json' \(.*\); rename it"),
        ("b/own_twice.py", r"two files to import are called own_twice.py \(.*\); rename one"),
    ],
)
def test_names_that_cannot_be_used(folder: Path, spec: str, message: str) -> None:
    for file in ("my-method.py", "json.py", "a/own_twice.py", "b/own_twice.py"):
        write(folder / file)
    load_extension("a/own_twice.py")
    with pytest.raises(BadInput, match=message):
        load_extension(spec)


# ------------------------------------------------------------------ what a run recorded


def test_a_recorded_file_is_refused_when_it_changed_or_is_gone(folder: Path) -> None:
    file = write(folder / "own_recorded.py")
    record = pinned(file)
    write(file, "value = 2\n")
    with pytest.raises(BadInput, match=r"is not what the run began with \(sha256 \w{12}, was"):
        load_extension(record)
    file.unlink()
    with pytest.raises(BadInput, match=r"which is not there; say where it is now: --import own_r"):
        load_extension(record)


def test_a_file_that_is_named_anew_takes_the_place_of_its_old_self(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Moved: without a word. Changed: with one."""
    old, other = write(folder / "a/mine.py"), write(folder / "a/other.py", "value = 0\n")
    records = (pinned(old), pinned(other), "package.module")
    moved = str(write(folder / "b/mine.py"))
    assert replaced(records, ()) == records
    assert replaced(records, [moved, "new.py"]) == (moved, *records[1:], "new.py")
    assert not caplog.records
    write(Path(moved), "value = 2\n")
    with caplog.at_level(logging.WARNING, "fedloom"):
        assert replaced(records, [moved])[0] == moved
    assert "began with another" in caplog.text


# ------------------------------------------------------------------ a thing in a file


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("net.py:Net", Place("net.py", "Net")),
        (" a b/net.py:Net(width=8) ", Place("a b/net.py", "Net(width=8)")),
        ("C:/nets/net.py:Net", Place("C:/nets/net.py", "Net")),
        ("a.b:resnet18(num_classes=10)", Place("a.b", "resnet18(num_classes=10)")),
        ("net.py:Net(name='a:b')", Place("net.py", "Net(name='a:b')")),
        ("timm_encoder(name='a:b')", None),
        ("cnn4", None),
        ("net.py", None),
        ("net.py:", None),
    ],
)
def test_a_place_is_a_file_or_module_and_a_name(text: str, place: Place | None) -> None:
    assert Place.of(text) == place


def test_a_misspelt_name_in_a_file_offers_the_nearest(folder: Path) -> None:
    write(folder / "own_nets.py", "class Network: ...\n")
    load_extension("own_nets.py")
    with pytest.raises(BadInput, match=r"own_nets has no 'Netwrk'; did you mean 'Network'\?"):
        attribute("own_nets", "Netwrk")
