"""What the steps of one round are: worked out from a method, its settings and a number of rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedloom.core.method import Method
    from fedloom.core.phase import Opt


@dataclass(frozen=True)
class Stretch:
    """One phase of a round at a site with so many training rows."""

    phase: str
    opt: Opt
    """With every value settled, as in the first round."""
    rows: int

    @property
    def batch(self) -> int:
        """Rows of a full batch."""
        return self.opt.batch if self.opt.replacement else min(self.opt.batch, self.rows)

    @property
    def left_over(self) -> int:
        """Rows of a pass that fill no batch."""
        return 0 if self.opt.replacement else self.rows % self.batch

    @property
    def smallest_batch(self) -> int:
        """Rows of the smallest batch."""
        return self.left_over if self.left_over and not self.opt.drop_last else self.batch

    @property
    def steps_per_pass(self) -> int:
        """Batches of one pass over the rows."""
        return -(-self.rows // self.batch) - bool(self.left_over and self.opt.drop_last)

    @property
    def steps(self) -> int:
        """Steps of the round."""
        if self.opt.steps is not None:
            return self.opt.steps
        return self.opt.epochs * self.steps_per_pass

    @property
    def all_rows_each_step(self) -> bool:
        """Is every step over all rows?"""
        return self.batch == self.rows and not self.opt.replacement

    @property
    def whole_passes(self) -> bool:
        """Do the steps go over all rows, once or several times? `drop_last` may leave out a few,
        others in every pass."""
        if self.opt.replacement:
            return False
        return self.opt.steps is None or self.opt.steps % self.steps_per_pass == 0


def stretches(method: Method, rows: int) -> list[Stretch]:
    """The phases of a round that train what is sent, without those that take no step."""
    settled = [Stretch(p.name, p.over(method.opt).opt, rows) for p in method.phases]
    return [stretch for stretch in settled if stretch.steps]


def numbers_used(method: Method) -> dict[str, str]:
    """Epochs, batch size and learning rate that a method trains with, by key; of each phase where
    phases differ."""
    settled = {phase.name: phase.over(method.opt).opt for phase in method.phases}
    training = {name: opt for name, opt in settled.items() if opt.steps or opt.epochs}
    values: dict[str, dict[str, str]] = {
        "epochs": {
            name: f"{opt.steps} steps instead" if opt.steps else str(opt.epochs)
            for name, opt in training.items()
        },
        "batch_size": {name: str(opt.batch) for name, opt in training.items()},
        "lr": {name: f"{opt.lr:g}" for name, opt in training.items()},
    }
    return {key: _in_words(of_phases) for key, of_phases in values.items()}


def _in_words(of_phases: Mapping[str, str]) -> str:
    """
    >>> _in_words({"body": "1", "head": "5"}), _in_words({"body": "1", "head": "1"})
    ('body 1, head 5', '1')
    """
    if len(set(of_phases.values())) == 1:
        return next(iter(of_phases.values()))
    return ", ".join(f"{phase} {value}" for phase, value in of_phases.items()) or "none"


def rows_trained(method: Method, rows: int, val_rows: int) -> int:
    """Training rows that a method leaves for its steps: some hold out a share of them where the
    data has no validation rows."""
    if not method.holds_out or val_rows:
        return rows
    share = float(getattr(method, method.holds_out))
    return rows - min(max(1, round(share * rows)), rows - 1)
