"""Every part declares what it sends of a site's rows, and uploads hold nothing that it does not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from cases import ALL, case

from fedloom.core.frozen import FROZEN
from fedloom.core.net import METHOD
from fedloom.core.revelations import DECLARED, revealed_by
from fedloom.core.term import Term
from fedloom.errors import BadInput
from fedloom.methods.fedavg import FedAvg
from fedloom.methods.fedbr import FedBR

CLASSES = 10
PER_CLASS = {"class_means", "class_counts"}


@pytest.mark.parametrize("name", ALL)
def test_every_part_declares(name: str) -> None:
    for part in case(name).program().method.parts:
        declared = revealed_by(part)
        assert declared is not None, f"{part.name}: add reveals = (...), () for nothing"
        assert set(declared) <= set(DECLARED)


@pytest.mark.parametrize("name", ALL)
def test_uploads_beside_the_model_are_declared(name: str) -> None:
    """By their shapes: an input's, a representation's, or one entry for each class."""
    program = case(name).program()
    net, parts = program.nets[0], {part.name: part for part in program.method.parts}
    shape, width = net.shape, net.shape_of(net.representation).numel()
    for answer in case(name).straight.answers:
        for slice_, tree in answer.up.state.items():
            if slice_ in (METHOD, FROZEN):
                continue
            declared = set(revealed_by(parts[slice_]) or ())
            for key, tensor in tree.items():
                if key in net.initial:
                    continue  # of the size of a model's tensor: a control variate
                where = f"{slice_}/{key} {list(tensor.shape)}"
                if tuple(tensor.shape[-len(shape) :]) == shape:
                    assert "row_means" in declared, where
                elif CLASSES in tensor.shape:
                    assert declared & PER_CLASS, where
                elif tensor.numel() == width > 1:
                    assert declared & {"feature_mean", "row_means"}, where


def test_settings_change_what_is_revealed() -> None:
    assert revealed_by(FedBR()) == ("row_means",)
    assert revealed_by(FedBR(pseudo="mixture")) == ()


def test_a_class_that_says_nothing_is_unknown_whatever_it_inherits() -> None:
    @dataclass(frozen=True, kw_only=True)
    class SendsMore(FedAvg):
        pass

    @dataclass(frozen=True)
    class Silent(Term):
        pass

    assert revealed_by(SendsMore()) is None
    assert revealed_by(Silent()) is None


def test_a_misspelt_declaration_is_refused_where_it_stands() -> None:
    with pytest.raises(BadInput, match="did you mean 'row_means'"):

        @dataclass(frozen=True)
        class Misspelt(Term):
            reveals = ("row_mean",)
