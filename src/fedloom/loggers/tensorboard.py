"""TensorBoard: `tensorboard --logdir runs`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.errors import needs_extra
from fedloom.loggers.base import Logger, Plain


class TensorBoard(Logger):
    """Curves as scalars (which TensorBoard keeps in single precision), the configuration and the
    summary as tables on the page Text."""

    name = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        super().__init__(folder)
        with needs_extra(self.name):
            # torch.utils.tensorboard would do as well, and imports much more.
            from tensorboard.compat.proto import event_pb2, summary_pb2
            from tensorboard.plugins.text import metadata
            from tensorboard.summary.writer import event_file_writer
            from tensorboard.util import tensor_util
        self._event, self._summary = event_pb2, summary_pb2
        self._text, self._tensor = metadata, tensor_util.make_tensor_proto
        self._new_writer = event_file_writer.EventFileWriter
        self._writer: Any = None

    def _open(self, folder: Path, title: str, log: str | None) -> str:
        self._writer = self._new_writer(str(folder))
        if log is None:
            # Whatever an earlier run left in this folder does not count any more.
            start = self._event.SessionLog(status=self._event.SessionLog.START)
            self._add(session_log=start)
        return title

    def _write_config(self, config: Plain) -> None:
        self._write_table("config", config)

    def _write(self, values: Mapping[str, float], step: int) -> None:
        scalar = self._summary.Summary.Value
        scalars = [scalar(tag=tag, simple_value=value) for tag, value in values.items()]
        self._add(summary=self._summary.Summary(value=scalars))

    def _write_summary(self, summary: Plain) -> None:
        self._write_table("summary", summary)

    def _close(self, well: bool) -> None:
        self._writer.close()

    def _write_table(self, tag: str, values: Plain) -> None:
        rows = [f"| {key} | {_cell(value)} |" for key, value in values.items()]
        shown = "\n".join(["| key | value |", "| --- | --- |", *rows])
        text = self._summary.Summary.Value(
            tag=tag,
            metadata=self._text.create_summary_metadata(tag, ""),
            tensor=self._tensor(shown),
        )
        self._add(summary=self._summary.Summary(value=[text]))

    def _add(self, **content: Any) -> None:
        event = self._event.Event(wall_time=time.time(), step=self._round, **content)
        self._writer.add_event(event)
        self._writer.flush()


def _cell(value: object) -> str:
    """Text inside a Markdown table."""
    return str(value).replace("|", "\\|")
