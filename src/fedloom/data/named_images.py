"""Image files that a table names instead of holding them: they are data too, and may change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

_KEPT = 8
"""Tables whose names are held in memory."""


def named_images(data: Path) -> list[Path]:
    """Existing image files that a table, or the tables in a folder, name in a column of images."""
    folder = data if data.is_dir() else data.parent
    tables = sorted(f for f in data.rglob("*") if f.is_file()) if data.is_dir() else [data]
    names = (
        name for table in tables if table.is_file() for name in _names(table, *_version(table))
    )
    return sorted({file for name in names if (file := folder / name).is_file()})


def _version(table: Path) -> tuple[int, int]:
    return table.stat().st_size, table.stat().st_mtime_ns


@lru_cache(maxsize=_KEPT)
def _names(table: Path, size: int, modified: int) -> tuple[str, ...]:
    """In one file, of that version; none in one that cannot be read, of which reading the data
    says why."""
    readers = {".parquet": _in_parquet, ".arrow": _in_arrow}
    reader = readers.get(table.suffix.lower())
    if reader is None:
        return ()
    try:
        return tuple(dict.fromkeys(name for name in reader(table) if name))
    except Exception:  # pyarrow has errors of many kinds for damaged files
        return ()


def _in_parquet(table: Path) -> Iterator[str]:
    from pyarrow import parquet

    with parquet.ParquetFile(table) as file:
        for column in _image_columns(file.schema_arrow):
            if not _holds_all(file.metadata, f"{column}.bytes"):
                for batch in file.iter_batches(columns=[f"{column}.path"]):
                    yield from batch.column(column).field("path").to_pylist()


def _in_arrow(table: Path) -> Iterator[str]:
    import pyarrow as pa

    with pa.memory_map(str(table)) as mapped, pa.ipc.open_stream(mapped) as stream:
        for batch in stream:
            for column in _image_columns(batch.schema):
                images = batch.column(column)
                yield from images.field("path").filter(images.field("bytes").is_null()).to_pylist()


def _image_columns(schema: Any) -> list[str]:
    """Columns with the bytes of images, or else their paths."""
    import pyarrow as pa

    return [
        field.name
        for field in schema
        if pa.types.is_struct(field.type) and {"bytes", "path"} <= _fields(field.type)
    ]


def _fields(struct: Any) -> set[str]:
    return {struct.field(i).name for i in range(struct.num_fields)}


def _holds_all(metadata: Any, leaf: str) -> bool:
    """Does a parquet file say that none of its images is outside of it?"""
    groups: Iterable[Any] = map(metadata.row_group, range(metadata.num_row_groups))
    chunks = [g.column(i) for g in groups for i in range(g.num_columns)]
    counts = [c.statistics for c in chunks if c.path_in_schema == leaf]
    return all(s is not None and s.has_null_count and s.null_count == 0 for s in counts)
