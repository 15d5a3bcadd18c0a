"""zstd on the wire: what arrives is what was sent, and what claims too much is never unpacked."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
import zstandard
from flwr.app import Array, ArrayRecord, RecordDict

from fedloom.core.message import Up
from fedloom.engines import zstd_arrays
from fedloom.engines.flower import codec
from fedloom.engines.flower.codec import Reply
from fedloom.engines.flower.reply_size import held_bytes
from fedloom.engines.zstd_arrays import STYPE, full_bytes, squeeze, squeezed, unpacked
from fedloom.errors import BadInput

ZEROS = Array(np.zeros((40, 50), dtype=np.float32))


def bomb(claims: int | None = None) -> Array:
    """64 MB of zeros in two kilobytes, with the size that it claims to have."""
    sized = zstandard.ZstdCompressor(level=3, write_content_size=claims is not None)
    data = bytearray(sized.compress(bytes(2**26)))
    if claims is not None:
        # RFC 8878: behind the magic number and the descriptor, which gives the size four bytes.
        assert data[4] >> 6 == 2
        at = 5 if data[4] & 0b100000 else 6
        data[at : at + 4] = claims.to_bytes(4, "little")
    return Array("float32", (40, 50), STYPE, bytes(data))


def test_what_gets_smaller_travels_smaller_and_arrives_as_it_was() -> None:
    small = squeezed(ZEROS)
    assert (small.stype, small.dtype, small.shape) == (STYPE, "float32", (40, 50))
    assert len(small.data) < 100
    assert full_bytes(small) == len(ZEROS.data)
    assert unpacked(small) == ZEROS.data


def test_what_hardly_gets_smaller_travels_as_it_is() -> None:
    """Weights of a network: of four bytes only the exponent repeats."""
    drawn = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).numpy()
    for array in (Array(drawn), Array(np.zeros(9))):
        assert squeezed(array) is array
        assert unpacked(array) is array.data


def test_a_reply_survives() -> None:
    levels = torch.full((3000,), 7, dtype=torch.uint8)
    state = {"model": {"w@levels": levels, "w@scale": torch.tensor(0.5)}, "part": {}}
    records = codec.write_reply(Reply(3, Up(state, 17, {"loss": 0.5}), ""))
    before = held_bytes(records)
    squeeze(records)
    sent = records.array_records["state/model"]["w@levels"]
    assert len(sent.data) < 100
    assert held_bytes(records) == before > 3000
    read = codec.read_reply(records).up.state
    assert torch.equal(read["model"]["w@levels"], levels)
    assert read["model"]["w@scale"] == 0.5


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (bomb(), "does not say how large it is"),
        (bomb(claims=8128), "cannot be unpacked"),
        (Array("float32", (40, 50), STYPE, squeezed(ZEROS).data + b"more"), "cannot be unpacked"),
        (Array("float32", (40, 50), STYPE, squeezed(ZEROS).data[:-1]), "cannot be unpacked"),
    ],
)
def test_an_array_that_is_not_what_it_claims_is_refused(array: Array, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        unpacked(array)


def test_an_honest_bomb_counts_with_its_full_size_and_nothing_is_unpacked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(zstd_arrays.zstandard, "ZstdDecompressor")
    array = bomb(claims=2**26)
    assert len(array.data) < 10_000
    assert held_bytes(RecordDict({"state/model": ArrayRecord({"w": array})})) >= 2**26
