"""Every registered method through a site's gate: each answer has its declared form, same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from cases import ALL, case
from flwr.app import Message

from fedloom.core.data import Federation
from fedloom.core.program import Program
from fedloom.deploy.gate.derive import derive_form
from fedloom.deploy.gate.form import Form
from fedloom.deploy.gate.orders import OrderHead, read_order_head
from fedloom.deploy.gate.replies import checked_answer
from fedloom.engines.flower.in_process import InProcess, LocalGrid, from_wire
from fedloom.engines.inline import Inline
from fedloom.engines.message_bundle import bundled, opened
from fedloom.runs.runner import Runner
from fedloom.testing.checks import ROUNDS, check_flower_gives_the_same

pytestmark = pytest.mark.slow


class GatedGrid(LocalGrid):
    """Answers leave as the gate writes them."""

    form: Form

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = list(super().push_messages(messages))
        orders = [from_wire(self._waiting[name]) for name in ids]
        self.orders: dict[str, OrderHead] = {
            name: read_order_head(opened(order.content))
            for name, order in zip(ids, orders, strict=True)
            if len(order.content)
        }
        return ids

    def let_out(self, reply: Message) -> None:
        order = self.orders.get(reply.metadata.reply_to_message_id)
        if order is not None:
            answer = checked_answer(opened(reply.content), order, self.form, rows=10_000)
            reply.content = bundled(answer)


class GatedInProcess(InProcess):
    """The Flower engine with a gate at every client."""

    def open(self, program: Program, data: Federation, folder: Path | None = None) -> None:
        super().open(program, data, folder)
        grid = self.roster.line.grid
        assert isinstance(grid, LocalGrid)
        tokens, splits = data.kind == "text", ("test", "val", "train")
        form = derive_form(program, data.classes, tokens, ROUNDS, splits, [program.clients])
        gated = GatedGrid(grid.app, len(data))
        gated.form = Form.model_validate_json(form.model_dump_json())
        self.roster.line.grid = gated


@pytest.mark.parametrize("name", ALL)
def test_the_gate_lets_out_what_a_method_sends_and_changes_nothing(name: str) -> None:
    check_flower_gives_the_same(replace(case(name), engines={"flower": GatedInProcess()}))


@pytest.mark.parametrize("name", ["fedavg", "dbe", "fedproto"])
def test_masked_answers_pass_the_gate(name: str) -> None:
    """Keys, shares and masked uploads have their declared forms, and no answer tells rows."""
    runs = []
    for engine in (Inline(), GatedInProcess()):
        experiment = case(name).experiment(rounds=ROUNDS, secure_aggregation=True)
        runner = Runner(experiment, engine)
        runner.run()
        engine.close()
        runs.append(runner)
    assert runs[0].chain.link == runs[1].chain.link
    assert all(not record.absent and not record.rows for record in runs[1].records)
