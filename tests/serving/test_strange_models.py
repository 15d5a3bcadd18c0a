"""Folders of models that a stranger wrote, with digests that are right."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedloom import BadInput, FedloomError, PersonalModel, run


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("model")
    result = run("fedper", rounds=1, clients=3, partition="iid", model="mlp(hidden=[8])")
    result.client(1).save(folder)
    return folder


def with_card(folder: Path, **fields: Any) -> Path:
    """The folder, whose card says other things, and says so as if it were meant."""
    card = json.loads((folder / "card.json").read_text())
    del card["sha256"]
    before, card = dict(card), {**card, **fields}
    digest = sha256(json.dumps(card, sort_keys=True).encode()).hexdigest()
    (folder / "card.json").write_text(json.dumps({**card, "sha256": digest}))
    assert before != card
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"network": "mlp(hidden=[30000, 30000])"}, "more than the .* model's tensors allow"),
        ({"network": "evil.py:Net"}, "needs code or files of its own .*evil.py"),
        ({"network": "transformers_encoder(name='evil/model')"}, "evil/model"),
        ({"network": "timm_encoder(name=resnet18, pretrained=true)"}, "https://huggingface.co"),
        ({"imports": ["evil.py"]}, "needs code or files of its own .*evil.py"),
        ({"std": [0.0]}, "std.0: input should be greater than 0"),
        ({"mean": [float("nan")]}, "mean.0: input should be a finite number"),
        ({"shape": [10**7, 10**7, 10**7]}, "."),
        ({"files": {"../x": "0"}}, r"\^\[A-Za-z0-9\]"),
    ],
)
def test_what_a_strange_card_asks_for_is_refused_in_one_sentence(
    folder: Path, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(FedloomError, match=sentence) as refused:
        PersonalModel.load(with_card(folder, **fields))
    assert "\n" not in str(refused.value)


def test_code_that_a_user_names_does_not_let_a_stranger_s_run(folder: Path) -> None:
    """Naming one file is no leave for another that the card names."""
    for name in ("mine", "evil"):
        (folder / f"{name}.py").write_text(f"open({str(folder / name)!r}, 'w').close()\n")
    with_card(folder, network=f"{folder}/evil.py:Net")
    with pytest.raises(BadInput, match=r"name what may be used"):
        PersonalModel.load(folder, imports=[f"{folder}/mine.py"])
    assert not (folder / "evil").exists()


def test_of_networks_dealt_in_turn_the_clients_own_is_built(folder: Path) -> None:
    """Client 1 has the second of them; the others are nobody's concern."""
    with_card(folder, network="no_such_network | mlp(hidden=[8])")
    assert PersonalModel.load(folder).predict(np.zeros((1, 1, 8, 8), np.uint8)).shape == (1, 10)
