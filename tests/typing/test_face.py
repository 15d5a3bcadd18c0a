"""What `import fedloom as fl` offers: to type checkers and at run time the same, and all of it."""

from __future__ import annotations

import inspect
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import fedloom as fl
from fedloom import errors
from fedloom.lazy import names_in_stub
from fedloom.methods import register
from helpers import LIMIT

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("user_program.py")
LAZY = ["fedloom", "fedloom.analysis", "fedloom.data"]

MISSPELT = {
    "fl.FedPer()": "fl.FedPerr()",
    "s.w[k] if": "s.no_such_attribute[k] if",
    "self._size(s.w)": "self._siz(s.w)",
    "fl.Batch, s: fl.Site) -> None": "fl.Bach, s: fl.Site) -> None",
    "s.net.feature": "s.net.features",
    "s.data.classes).float()": "s.data.class_count).float()",
    "len(r.ups)": "len(r.uploads)",
    "up.n *": "up.rows *",
    "record.round -": "record.t -",
    "past.loss for": "past.losses for",
    "fl.Stop(": "fl.Halt(",
    "result.accuracy": "result.acuracy",
    "summary.stopped": "summary.stoped",
    "rounds=40": "round=40",
    '"eval_every": 3': '"evaluate_every": 3',
    'moment="trained"': 'moment="traind"',
    "row.label": "row.name",
    "fl.analysis.linear_cka": "fl.analysis.linear_kca",
    "same.value": "same.score",
    "fl.UnknownName": "fl.UnknownNam",
    "-> fl.Stop | None": "-> bool",
    "def weight(self, r: fl.Round, cid: int, up: fl.Up) -> float": "def weight(self, r: fl.Round)"
    " -> float",
}
"""What the program says -> a mistake that a type checker must find on that line."""


# ------------------------------------------------------------------ a user's program


def test_a_users_program_runs() -> None:
    done = subprocess.run(
        [sys.executable, PROGRAM], capture_output=True, text=True, check=True, timeout=LIMIT
    )
    lines = done.stdout.splitlines()
    assert lines[0].startswith("warm_heads(head_epochs=1) + small_heads(mu=0.05): ")
    assert lines[1].startswith("stopped: no progress since round ")
    assert lines[-1] == "unknown method 'fedavgg'; did you mean 'fedavg'?"


def mypy_errors(*programs: Path) -> dict[str, list[int]]:
    """File name -> lines with an error, with the options and the cache of `make types`."""
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--strict"]
    done = subprocess.run(
        [*command, *programs], cwd=ROOT, capture_output=True, text=True, check=False, timeout=LIMIT
    )
    assert not done.stderr, done.stderr
    lines: dict[str, list[int]] = {program.name: [] for program in programs}
    for file, line in re.findall(r"^(.+?):(\d+): error: ", done.stdout, re.MULTILINE):
        if Path(file).name in lines:
            lines[Path(file).name].append(int(line))
    return lines


def test_mypy_accepts_a_users_program_and_finds_every_mistake_on_its_line(tmp_path: Path) -> None:
    """All copies at once: what takes long is to read torch."""
    source = PROGRAM.read_text(encoding="utf-8")
    mistakes = {}
    for i, (right, wrong) in enumerate(MISSPELT.items()):
        assert right in source, f"the program no longer says {right!r}"
        mistakes[tmp_path / f"wrong_{i}.py"] = (
            wrong,
            source[: source.index(right)].count("\n") + 1,
        )
        (tmp_path / f"wrong_{i}.py").write_text(source.replace(right, wrong, 1), encoding="utf-8")
    errors_in = mypy_errors(PROGRAM, ROOT / "examples" / "own_method.py", *mistakes)
    assert errors_in["user_program.py"] == errors_in["own_method.py"] == []
    missed = [wrong for file, (wrong, line) in mistakes.items() if line not in errors_in[file.name]]
    assert missed == []


# ------------------------------------------------------------------ the stubs


def test_every_registered_method_and_term_is_public_and_the_reverse() -> None:
    homes = names_in_stub("fedloom")
    public = {name for name, home in homes.items() if home.startswith("fedloom.methods.")}
    assert public == {register[name].__name__ for name in register}
    assert all(getattr(fl, register[name].__name__) is register[name] for name in register)


def test_every_error_is_public() -> None:
    kinds = inspect.getmembers(errors, inspect.isclass)
    assert {name for name, kind in kinds if issubclass(kind, fl.FedloomError)} <= set(dir(fl))


@pytest.mark.parametrize("package", LAZY)
def test_every_name_of_a_stub_is_there_and_no_module_hides_a_function(package: str) -> None:
    module = import_module(package)
    homes = names_in_stub(package)
    assert dir(module) == module.__all__ == sorted(homes)
    for home in set(homes.values()) - {package}:
        import_module(home)
    modules = {info.name for info in pkgutil.iter_modules(module.__path__)}
    for name, home in homes.items():
        value = getattr(module, name)
        assert isinstance(value, ModuleType) == (home == package), name
        assert home == package or name not in modules or package == "fedloom.data"


@pytest.mark.parametrize("package", LAZY)
def test_an_unknown_name_is_an_attribute_error(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'FedAvgg'"):
        _ = import_module(package).FedAvgg


def test_importing_the_package_and_reading_data_imports_nothing_heavy() -> None:
    code = (
        "import sys, fedloom as fl; fl.load, fl.Source, fl.BadInput, dir(fl)\n"
        "print('heavy:', *{'torch', 'scipy', 'sklearn'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["heavy:"]
