"""Is a method of one's own a method? The contract that all of fedloom's keep, as a function.

from fedloom.testing import check_method

def test_contract():
    check_method("my_method")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

from fedloom.core.threads import one_thread
from fedloom.errors import UnknownName
from fedloom.testing.case import Checkable, ContractBroken, MethodCase, Needs
from fedloom.testing.checks import CHECKS, ENGINE_CHECKS, Check

__all__ = [
    "CHECKS",
    "ENGINE_CHECKS",
    "ContractBroken",
    "MethodCase",
    "check_method",
    "parametrize_with_checks",
]


F = TypeVar("F", bound=Callable[..., Any])


def check_method(
    method: Checkable, *, engines: Sequence[str] = ("pool",), **needs: Unpack[Needs]
) -> None:
    """Run a method through every check; raise `ContractBroken` that names each broken rule.

    Args:
        method: an expression, a method, a class, or a term, which is checked on FedAvg.
        engines: `pool` and `flower` are compared with a run in this process; `()` for none. The
            pool starts processes: in a script call this under `if __name__ == "__main__":`.
        needs: `model`, `batch_norm_model` (expressions) where the method cannot run on a small
            MLP; `rounds_to_learn` (5) for a slow start; `keeps_what_it_sent`, slices in which a
            client may keep what it sent, where the class does not say so itself.

    >>> check_method("fedper", engines=())
    """
    case = MethodCase.of(method, **needs)
    broken: list[str] = []
    cause: Exception | None = None
    for check in _checks(engines):
        try:
            _run(check, case)
        except ContractBroken as e:
            broken.append(str(e))
        except Exception as e:  # whatever the method or the core raises
            broken.append(f"{_rule(check, case)} It raised {type(e).__name__}: {e}")
            cause = cause or e
    if broken:
        raise ContractBroken("\n".join(broken)) from cause


def parametrize_with_checks(
    method: Checkable, *, engines: Sequence[str] = ("pool",), **needs: Unpack[Needs]
) -> Callable[[F], F]:
    """Decorator: a pytest function with the argument `check` becomes one test for each rule.

    The arguments are those of `check_method`.

        @parametrize_with_checks("my_method")
        def test_contract(check):
            check()
    """
    import pytest

    case = MethodCase.of(method, **needs)
    checks = [pytest.param(partial(_run, c, case), id=c.__name__) for c in _checks(engines)]
    mark: Callable[[F], F] = pytest.mark.parametrize("check", checks)
    return mark


def _checks(engines: Sequence[str]) -> list[Check]:
    for name in engines:
        if name not in ENGINE_CHECKS:
            raise UnknownName("engine to check", name, ENGINE_CHECKS)
    return [*CHECKS, *(ENGINE_CHECKS[name] for name in engines)]


def _run(check: Callable[[MethodCase], None], case: MethodCase) -> None:
    try:
        with one_thread():
            check(case)
    except ContractBroken as e:
        raise ContractBroken(f"{_rule(check, case)} {str(e)[:1].upper()}{str(e)[1:]}.") from None


def _rule(check: Callable[[MethodCase], None], case: MethodCase) -> str:
    """The method, the check and the rule that it breaks, in a sentence."""
    rule = " ".join((check.__doc__ or "").split("\n\n")[0].split())
    return f"{case.expression} breaks {check.__name__}: {rule!r}"
