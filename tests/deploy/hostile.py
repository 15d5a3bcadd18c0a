"""A federation of three sites over the real codec, of which the last one is hostile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.run import Run
from sites import digits_schema, write_rows

from fedloom.deploy import apps
from fedloom.deploy.project.public_keys import PublicKeys, key_bytes
from fedloom.deploy.server.run import serve
from fedloom.deploy.settings import Settings
from fedloom.engines.flower.in_process import LocalGrid, from_wire, to_wire
from fedloom.engines.message_bundle import bundled, opened
from fedloom.launch.start import Result
from helpers import LIMIT

NAMES = ("hospital-a", "hospital-b", "hospital-c")
KINDS = ((0, 1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9, 0))
HOSTILE = 2
CONFIG: dict[str, Any] = {
    "method": "fedper",
    "model": "mlp(hidden=[16])",
    "rounds": 2,
    "batch-size": 16,
    "sites": ",".join(NAMES),
    "min-clients": 2,
    "deadline": LIMIT,
}
Spoil = Callable[[RecordDict], RecordDict]


class Grid(LocalGrid):
    """Nodes with keys; what the hostile one says goes through `spoil`, and over the wire again."""

    def __init__(self, count: int, keys: list[bytes], spoil: Spoil) -> None:
        super().__init__(apps.client, count)
        self.keys, self.spoil = keys, spoil

    def get_nodes(self) -> list[NodeInfo]:
        ids = list(self.get_node_ids())
        return [NodeInfo(node_id=i, public_key=key) for i, key in zip(ids, self.keys, strict=True)]

    def pull_messages(self, message_ids: Any) -> list[Message]:
        replies = super().pull_messages(message_ids)
        for reply in replies:
            if reply.metadata.src_node_id == 1000 + HOSTILE:
                reply.content = bundled(self.spoil(opened(reply.content)))
        return [from_wire(to_wire(reply)) for reply in replies]


@dataclass
class Federation:
    """Sites with their own files, and the server's folder of public keys."""

    root: Path
    files: list[Path]
    keys: list[bytes]

    @property
    def folder_of_keys(self) -> Path:
        return self.root / "keys"

    def run(self, experiment: str, spoil: Spoil, **changes: Any) -> Result:
        """All rounds, with what the hostile site does."""
        out = str(self.root / experiment)
        config = {**CONFIG, "out": out, "experiment": experiment, **changes}
        grid = Grid(len(self.files), self.keys, spoil)
        grid.set_run(replace(Run.create_empty(run_id=1), fab_hash="ab" * 32))
        for context, file in zip(grid._contexts.values(), self.files, strict=True):
            context.node_config, context.run_config = {"site": str(file)}, config
        keys = PublicKeys(self.folder_of_keys)
        return serve(
            grid, Settings.read(config), digits_schema(), keys, poll=0.01, project=self.root
        )


def new_key() -> ec.EllipticCurvePublicKey:
    return ec.generate_private_key(ec.SECP384R1()).public_key()


def write_key(file: Path, key: ec.EllipticCurvePublicKey) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")


def hostile_federation(root: Path) -> Federation:
    """Three sites, each with a key that is let in."""
    files, keys = [], []
    digits_schema().write(root / "schema.toml")
    for name, kinds in zip(NAMES, KINDS, strict=True):
        folder = root / name
        folder.mkdir()
        write_rows(folder / "rows.npz", kinds)
        lines = ['data = "rows.npz"', 'state = "kept"', 'schema_file = "../schema.toml"']
        (folder / "site.toml").write_text("\n".join([f'name = "{name}"', *lines]) + "\n")
        key = new_key()
        write_key(root / "keys" / f"{name}.pub", key)
        files.append(folder / "site.toml")
        keys.append(key_bytes(key))
    return Federation(root, files, keys)
