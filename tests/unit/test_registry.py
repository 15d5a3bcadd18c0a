"""Registries: names to things, with errors that offer what was meant."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Optional

import pytest
from pydantic import Field

from fedloom.data import partitions, register_data
from fedloom.errors import BadInput, UnknownName
from fedloom.expression import Call, parse_one
from fedloom.methods import register
from fedloom.methods.fedavg_ft import FedAvgFT
from fedloom.methods.lg_fedavg import LGFedAvg
from fedloom.models import models
from fedloom.registry import Registry


@pytest.fixture
def things() -> Registry:
    registry = Registry("thing")

    @registry
    def Rotate(angle: float, steps: int = 1) -> tuple:
        return ("rotate", angle, steps)

    @registry
    def flip(shape: tuple, axis: int = 0) -> tuple:
        return ("flip", shape, axis)

    @registry
    @dataclass(frozen=True, kw_only=True)
    class Noise:
        name: ClassVar[str] = "white_noise"
        sigma: float = 1.0

    return registry


def build(registry: Registry, text: str, **context):
    return registry.build(parse_one(text), **context)


def test_registered_under_its_name_or_in_lower_case(things):
    assert list(things) == ["flip", "rotate", "white_noise"]


@pytest.mark.parametrize(
    "name", ["white_noise", "white-noise", "WhiteNoise", "WHITE_NOISE", "whitenoise"]
)
def test_look_ups_ignore_case_hyphens_and_underscores(things, name):
    assert name in things
    assert things.canonical(name) == "white_noise"
    assert build(things, "White-Noise(sigma=2)").sigma == 2


def test_arguments_by_place_and_by_name(things):
    assert build(things, "rotate(90)") == ("rotate", 90, 1)
    assert build(things, "rotate(90, 2)") == build(things, "rotate(steps=2, angle=90)")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotat(90)", r"unknown thing 'rotat'; did you mean 'rotate'\?"),
        ("flipp", r"did you mean 'flip'\?"),
        ("xyzzy", r"unknown thing 'xyzzy'; there are: flip, rotate, white_noise$"),
    ],
)
def test_an_unknown_name_offers_the_nearest(things, text, message):
    with pytest.raises(UnknownName, match=message):
        build(things, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rotate(angel=3)", r"thing 'rotate' has no argument 'angel'; did you mean 'angle'\?"),
        ("rotate(90, zzz=1)", r"no argument 'zzz'; there are: angle, steps$"),
        ("rotate", r"missing a required argument: 'angle'; it takes angle, steps"),
        ("rotate(1, 2, 3)", r"too many positional arguments; it takes angle, steps"),
        ("rotate(1, angle=2)", r"multiple values for argument 'angle'"),
        ("white_noise(2)", r"too many positional arguments; it takes sigma"),
    ],
)
def test_a_wrong_argument_is_named(things, text, message):
    with pytest.raises(BadInput, match=message):
        build(things, text)


def test_context_fills_what_is_asked_for_and_cannot_be_overruled(things):
    """`flip` asks for the shape and gets it, `rotate` does not; nobody may write it."""
    assert build(things, "flip(axis=1)", shape=(2, 3), classes=5) == ("flip", (2, 3), 1)
    assert build(things, "rotate(90)", shape=(2, 3)) == ("rotate", 90, 1)
    with pytest.raises(BadInput, match=r"no argument 'shape'; there are: axis$"):
        build(things, "flip(shape=3)", shape=(2, 3))


def test_an_error_inside_an_entry_is_not_taken_for_a_wrong_argument():
    registry = Registry("thing")

    @registry
    def broken() -> None:
        raise TypeError("from within")

    with pytest.raises(TypeError, match="from within"):
        registry.build(Call("broken"))


@pytest.mark.parametrize("other", ["white_noise", "white-noise", "WhiteNoise"])
def test_two_things_of_one_name_are_refused(things, other):
    """Also where the names differ only in what look-ups ignore; the first stays."""
    first = things["white_noise"]

    class Other:
        name = other

    with pytest.raises(BadInput, match="two things are called 'white_noise'; rename one"):
        things(Other)
    assert things["white_noise"] is first
    assert list(things) == ["flip", "rotate", "white_noise"]


def test_registering_the_same_thing_again_is_no_harm(things):
    assert things(things["rotate"]) is things["rotate"]


def test_a_file_in_the_folder_is_registered_by_being_there(tmp_path, monkeypatch):
    """The package is imported at the first look-up, not before, and once."""
    package = tmp_path / "fedloom_test_folder"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from fedloom.registry import Registry\nfound = Registry('thing', __name__)\nloads = []\n"
    )
    (package / "one.py").write_text(
        "from fedloom_test_folder import found, loads\nloads.append(1)\n"
        "@found\ndef one():\n    return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import fedloom_test_folder as made

    assert made.loads == []
    assert "one" in made.found
    assert made.found.build(Call("one")) == 1
    assert made.loads == [1]


def test_a_look_up_imports_the_file_of_that_name_and_all_where_that_is_not_enough(
    tmp_path, monkeypatch
):
    """A file may hold more than its namesake; what a stranger calls alike is refused as ever."""
    registry = _folder_of_words(tmp_path, monkeypatch, "namesakes")
    assert registry["Alpha-Beta"]() == "alpha"
    assert "namesakes.other" not in sys.modules
    assert registry["second"]() == "second"
    assert "namesakes.other" in sys.modules

    registry = _folder_of_words(tmp_path, monkeypatch, "shadowed")
    registry.add("second", lambda: "a stranger's")
    with pytest.raises(BadInput, match="two things are called 'second'"):
        registry["second"]


def _folder_of_words(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> Registry:
    """A package with a file `alpha_beta` and another that holds `second`."""
    register = f"from {name} import registry\n"
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text(
        f"from fedloom.registry import Registry\nregistry = Registry('thing', '{name}')\n"
    )
    words = {"alpha_beta": "alpha_beta(): return 'alpha'", "other": "second(): return 'second'"}
    for file, definition in words.items():
        (package / f"{file}.py").write_text(f"{register}@registry\ndef {definition}\n")
    monkeypatch.syspath_prepend(folder)
    registry = importlib.import_module(name).registry
    assert isinstance(registry, Registry)
    return registry


def test_a_broken_file_is_reported_at_every_look_up(tmp_path, monkeypatch):
    """Not only at the first, after which its names would be called unknown."""
    package = tmp_path / "fedloom_broken_folder"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "broken.py").write_text("import fedloom_no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("thing", "fedloom_broken_folder")
    for _ in range(2):
        with pytest.raises(ModuleNotFoundError, match="fedloom_no_such_module"):
            registry.canonical("anything")


def test_methods_by_the_papers_spelling():
    assert register["FedAvg-FT"] is FedAvgFT
    assert register["LG-FedAvg"] is LGFedAvg
    with pytest.raises(UnknownName, match=r"unknown method 'fedprocs'; did you mean 'fedprox'\?"):
        register.canonical("fedprocs")


def test_every_method_has_a_line_to_show_and_its_own_name():
    for name in register:
        entry = register[name]
        assert (entry.__doc__ or "").strip(), name
        assert getattr(entry, "name", None) or entry.__name__.lower() == name


# ------------------------------------------------------------------ the types of arguments


@pytest.fixture
def typed() -> Registry:
    registry = Registry("thing")

    @registry
    def echo(
        share: Optional[float] = None,  # noqa: UP045
        word: Literal["pre", "post"] | None = "pre",
        number: int | str = 0,
        pair: tuple[int, float] = (0, 0.0),
        widths: Sequence[int] = (),
        names: list[str] = [],  # noqa: B006
        file: Path | None = None,
        bound: Annotated[float, Field(gt=0)] = 1.0,
        where: NoSuchType = None,  # noqa: F821
        anything=None,
    ):
        return {k: v for k, v in locals().items() if k != "registry"}

    return registry


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("share=1", 1),
        ("share=none", None),
        ("word=post", "post"),
        ("word=none", None),
        ("number=a", "a"),
        ("number=3", 3),
        ("pair=[1, 2]", (1, 2)),
        ("widths=[16, 8]", (16, 8)),
        ("names=[a, b]", ["a", "b"]),
        ("file='a/b.csv'", Path("a/b.csv")),
        ("bound=0.5", 0.5),
        ("where=here", "here"),
        ("anything=[1, a]", (1, "a")),
    ],
)
def test_what_was_written_is_passed_on(typed, argument, value):
    """A number stays the number that was written, a list becomes what the argument takes; a type
    that cannot be resolved is not checked."""
    name = argument.partition("=")[0]
    taken = build(typed, f"echo({argument})")[name]
    assert taken == value
    assert type(taken) is type(value)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("share='x'", r"thing 'echo': share = 'x' is not of type float \| None$"),
        ("share='1'", r"share = '1' is not of type float \| None"),
        ("share=true", r"share = True is not of type float \| None"),
        ("word=prae", r"word = 'prae' is unknown; use 'pre', 'post' or none$"),
        ("number=1.0", r"number = 1.0 is not of type int \| str"),
        ("number=true", r"number = True is not of type int \| str"),
        ("pair=[1]", r"pair = \(1,\) is not of type tuple\[int, float\]"),
        ("widths=16", r"widths = 16 is not a list of int; write \[16\]"),
        ("widths=[a]", r"widths = \('a',\) is not a list of int$"),
        ("names=a", r"names = 'a' is not a list of str; write \['a'\]"),
        ("bound=0", r"bound = 0 will not do: it should be greater than 0"),
    ],
)
def test_a_value_of_another_type_is_refused(typed, argument, message):
    with pytest.raises(BadInput, match=message):
        build(typed, f"echo({argument})")


def test_an_argument_by_place_is_checked_as_well(typed):
    with pytest.raises(BadInput, match="word = 'a' is unknown"):
        build(typed, "echo(1, a)")


def test_a_definition_that_is_run_again_replaces_itself():
    """As a cell of a notebook is; a definition inside a function is another one each time."""
    registry = Registry("thing")
    source = "class Mine:\n    name = 'mine'\n"
    scopes = [{"__name__": "notebook"} for _ in range(2)]
    for scope in scopes:
        exec(source, scope)
        registry(scope["Mine"])
    assert registry["mine"] is scopes[1]["Mine"]


# ------------------------------------------------------------------ installed packages


def install(folder: Path, name: str, points: str, source: str) -> None:
    """A package as an installer leaves it: a module, and what it announces."""
    (folder / f"{name}.py").write_text(source)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[fedloom.things]\n{points}\n")


@pytest.fixture
def announced(tmp_path, monkeypatch) -> Registry:
    """A registry that three packages announce something for, one of them broken."""
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("thing", group="fedloom.things")

    @registry
    def builtin():
        return "ours"

    functions = "def spin(angle: int = 3):\n    return angle\nclass Odd:\n    name = 'odd_one'\n"
    install(tmp_path, "fedloom_good", "turn = fedloom_good:spin\nodd = fedloom_good:Odd", functions)
    install(tmp_path, "fedloom_bad", "bad = fedloom_bad:bad", "import fedloom_no_such_module\n")
    install(tmp_path, "fedloom_clash", "builtin = fedloom_clash:f", "def f(): ...\n")
    return registry


def test_packages_announce_things_by_entry_points(announced):
    """Under the entry point's name, or the name that a class says it has."""
    assert list(announced) == ["builtin", "odd_one", "turn"]
    assert build(announced, "turn(angle=5)") == 5
    assert build(announced, "builtin") == "ours"


def test_a_package_may_register_things_of_another_kind_than_it_announces(tmp_path, monkeypatch):
    """Its module is imported for whatever name nobody knows, not only for the one it announces."""
    monkeypatch.syspath_prepend(str(tmp_path))
    announcing, other = Registry("thing", group="fedloom.things"), Registry("colour")
    monkeypatch.setattr("fedloom.registry.register_colour", other, raising=False)
    source = "from fedloom.registry import register_colour\n@register_colour\ndef mauve(): ...\n"
    install(tmp_path, "fedloom_mauve", "mauve = fedloom_mauve", source)
    assert other.canonical("Mauve") == "mauve"
    assert list(announcing) == []


def test_a_broken_package_is_named_and_breaks_no_other(announced, caplog):
    with caplog.at_level("WARNING", "fedloom"):
        assert "turn" in announced
    assert len(caplog.records) == 2, "once for each that is broken, whatever is looked up later"
    with pytest.raises(BadInput, match=r"the package fedloom_bad announces the thing 'bad', which"):
        build(announced, "bad")
    assert "fedloom_clash announces the thing 'builtin'" in caplog.text
    assert "two things are called 'builtin'" in caplog.text


def test_a_module_that_is_announced_registers_by_its_decorators(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    source = (
        "from fedloom_home import found\n@found\ndef one():\n    return 1\n"
        "@found\ndef two():\n    return 2\n"
    )
    (tmp_path / "fedloom_home.py").write_text(
        "from fedloom.registry import Registry\nfound = Registry('thing', group='fedloom.things')\n"
    )
    install(tmp_path, "fedloom_module", "all = fedloom_module", source)
    import fedloom_home

    assert list(fedloom_home.found) == ["one", "two"]


def test_fedlooms_own_registries_look_for_packages():
    groups = {r.kind: r.group for r in (register, models, register_data, partitions)}
    assert groups == {
        "method": "fedloom.methods",
        "model": "fedloom.models",
        "data set": "fedloom.data",
        "partition": "fedloom.partitions",
    }


def test_a_thread_that_comes_while_names_are_imported_waits_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first look-up imports; the second one comes in the midst of that, and must not call a
    name unknown that is about to be there."""
    package = tmp_path / "slowly_imported"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "late.py").write_text(
        "import sys\n"
        "begun, go_on, registry = sys.slowly\n"
        "begun.set()\n"
        "assert go_on.wait(60)\n"
        "registry.add('late', dict)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry = Registry("thing", package="slowly_imported")
    begun, go_on, answers = threading.Event(), threading.Event(), list[bool]()
    monkeypatch.setattr(sys, "slowly", (begun, go_on, registry), raising=False)

    def look() -> None:
        answers.append("late" in registry)

    first, second = threading.Thread(target=look), threading.Thread(target=look)
    first.start()
    assert begun.wait(60)
    second.start()
    second.join(0.2)  # without the lock it is over by now, and wrong
    go_on.set()
    first.join(60)
    second.join(60)
    assert answers == [True, True]
