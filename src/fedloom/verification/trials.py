"""The data of a tuning trial, which is the run's data without test rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedloom.data import Partition
from fedloom.extensions import replaced
from fedloom.runs.experiment import OBJECT, federated
from fedloom.tuning.validation import without_tests
from fedloom.verification.records import RunRecords


def data_of_trial(run: RunRecords, data: Any, imports: Sequence[str]) -> Any:
    """What a trial of `fedloom tune` was given; of any other run, `data` as it is."""
    config = run.config
    if (config.data == OBJECT and data is None) or not run.paths.partition.is_file():
        return data  # whoever builds the run says what is missing
    recorded = Partition.load(run.paths.partition)
    if recorded.shared or any(len(client.test) for client in recorded.clients):
        return data
    config = config.changed(imports=replaced(config.imports, imports)).imported()
    whole = federated(config, data)
    if whole.partition.fingerprint == recorded.fingerprint:
        return data
    return without_tests(whole, config.partition_seed)[0]
