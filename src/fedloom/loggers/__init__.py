"""Loggers: watchers that write a run for TensorBoard, Weights & Biases or MLflow.

Each imports its library when it is made, and writes nothing before the run begins.
"""

from __future__ import annotations

from pathlib import Path

from fedloom.errors import UnknownName
from fedloom.loggers.base import Logger
from fedloom.loggers.mlflow import MLflow
from fedloom.loggers.tensorboard import TensorBoard
from fedloom.loggers.wandb import WandB

LOGGERS: dict[str, type[Logger]] = {made.name: made for made in (TensorBoard, WandB, MLflow)}

__all__ = ["LOGGERS", "Logger", "MLflow", "TensorBoard", "WandB", "make_logger"]


def make_logger(name: str, folder: str | Path | None = None) -> Logger:
    """A logger by name, one of `LOGGERS`; by default it writes to `<run folder>/<name>`."""
    if name not in LOGGERS:
        raise UnknownName("logger", name, LOGGERS)
    return LOGGERS[name](folder)
