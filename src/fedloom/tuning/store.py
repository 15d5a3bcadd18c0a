"""The trials of a tuning on disk: Optuna's journal, a file of JSON lines that a kill leaves whole.

One study for each method. A trial is there from the beginning, with its settings; every rung it
reaches is reported as an intermediate value; it ends complete, pruned or failed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from fedloom.core.tunable import Range
from fedloom.errors import BadInput, RunFolderError, needs_extra
from fedloom.signals import delaying_stops
from fedloom.tuning.points import distributions
from fedloom.tuning.result import Trial
from fedloom.tuning.trial import Outcome

with needs_extra("tune"):
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, TrialState, create_trial

_JOURNAL = "trials.jsonl"
_LOCK = "tune.lock"
_FURTHER = "further_seed"


class _JournalFile(JournalFileBackend):
    """Optuna's file. Its lock is a file, made and removed: a stop in between would leave it."""

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        with delaying_stops():
            super().append_logs(logs)


class Store:
    """The journal in a folder, which this process alone may write in, until `close` or its death.

    The operating system drops the lock of a killed process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(folder / _LOCK, timeout=0)
            self._lock.acquire()
        except Timeout:
            raise RunFolderError(
                f"another process is tuning in {folder}; wait for it to end, or pick another --out"
            ) from None
        except OSError as e:
            raise RunFolderError(f"cannot write in {folder} ({e}); pick another --out") from e
        path = folder / _JOURNAL
        path.with_name(f"{_JOURNAL}.lock").unlink(missing_ok=True)  # Optuna's, of a killed process
        _drop_torn_line(path)
        optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would report every study
        self.journal = JournalStorage(_JournalFile(str(path)))

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def trials_per_method(self) -> int | None:
        """How many trials the methods that are here have; None: there are none yet."""
        studies = self.journal.get_all_studies()
        counts = (study.user_attrs.get("trials") for study in studies)
        return next((count for count in counts if count is not None), None)


class OtherTuning(BadInput):
    """A folder holds trials of the method with other settings."""

    def __init__(self, why: str) -> None:
        super().__init__(f"{why}; pick another --out")
        self.why = why


class Study:
    """The trials of one method."""

    def __init__(
        self, store: Store, label: str, settings: Mapping[str, Any], higher_is_better: bool = True
    ) -> None:
        self._journal = store.journal
        self._study = optuna.create_study(
            study_name=label,
            storage=store.journal,
            direction="maximize" if higher_is_better else "minimize",
            load_if_exists=True,
        )
        self._id = store.journal.get_study_id_from_name(label)
        self._where = f"{store.folder} holds a tuning of {label!r}"
        for key, value in settings.items():
            self._keep(key, value)

    def _keep(self, key: str, value: Any) -> None:
        """Write down what the trials depend on; refuse another value later."""
        before = self._study.user_attrs
        if key not in before:
            self._study.set_user_attr(key, value)
        elif before[key] != value:
            raise OtherTuning(f"{self._where} with {key} = {before[key]!r}, not {value!r}")

    def fill(self, asked: int, trials: list[Trial], ranges: Mapping[str, Range]) -> None:
        """Enter the trials that are not there yet; those that are keep the settings they have.

        `asked` is how many were asked for; a method that leaves nothing open has one.
        """
        self._keep("trials", asked)
        for trial in trials[len(self._frozen()) :]:
            drawn = trial.number > 0
            self._study.add_trial(
                create_trial(
                    state=TrialState.RUNNING,
                    params=dict(trial.settings) if drawn else {},
                    distributions=distributions(ranges) if drawn else {},
                    user_attrs={
                        "method": trial.expression,
                        "settings": dict(trial.settings),
                    },
                )
            )

    def trials(self) -> list[Trial]:
        """As they are now."""
        further: dict[int, dict[int, Any]] = {}
        for key, came_to in self._study.user_attrs.items():
            if key.startswith(_FURTHER):
                _, number, seed = key.split("/")
                further.setdefault(int(number), {})[int(seed)] = came_to
        return [_read(frozen, further.get(frozen.number, {})) for frozen in self._frozen()]

    def report(self, number: int, rounds: int, outcome: Outcome) -> None:
        """Write down what a trial came to at a rung; one without a score has ended."""
        trial = self._trial_id(number)
        spent = self.trials()[number].cpu_seconds + outcome.cpu_seconds
        self._journal.set_trial_user_attr(trial, "cpu_seconds", spent)
        if outcome.score is None:
            self._journal.set_trial_user_attr(trial, "why", outcome.why)
            self._journal.set_trial_state_values(trial, TrialState.FAIL)
        else:
            self._journal.set_trial_intermediate_value(trial, rounds, outcome.score)

    def prune(self, number: int) -> None:
        """The trial does not go on."""
        self._journal.set_trial_state_values(self._trial_id(number), TrialState.PRUNED)

    def complete(self, number: int, score: float) -> None:
        """The trial ran to the end."""
        self._journal.set_trial_state_values(self._trial_id(number), TrialState.COMPLETE, [score])

    def confirm(self, number: int, seed: int, outcome: Outcome) -> None:
        """Write down what a trial came to with a further seed. It is kept with the study: Optuna
        lets nobody add to a trial that has ended, and further seeds may be asked for later."""
        came_to = {"score": outcome.score, "cpu_seconds": outcome.cpu_seconds}
        self._study.set_user_attr(f"{_FURTHER}/{number}/{seed}", came_to)

    def _frozen(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def _trial_id(self, number: int) -> int:
        return self._journal.get_trial_id_from_study_id_trial_number(self._id, number)


def _read(frozen: FrozenTrial, further: Mapping[int, Any]) -> Trial:
    spent = [came_to["cpu_seconds"] for came_to in further.values()]
    return Trial(
        number=frozen.number,
        expression=frozen.user_attrs["method"],
        settings=frozen.user_attrs["settings"],
        scores=frozen.intermediate_values,
        why=frozen.user_attrs.get("why", ""),
        cpu_seconds=frozen.user_attrs.get("cpu_seconds", 0.0) + sum(spent),
        ended=frozen.state.is_finished(),
        confirmed={seed: came_to["score"] for seed, came_to in further.items()},
    )


def _drop_torn_line(path: Path) -> None:
    """A line that a kill cut off; Optuna would append to it, and then read neither."""
    if path.exists():
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content:
            path.write_bytes(whole)
