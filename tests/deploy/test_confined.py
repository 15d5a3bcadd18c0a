"""What looks into a stranger's proposal has bounds: its memory, its time, and nobody to call."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from gated_site import gated_site

from fedloom.deploy.gate import confined
from fedloom.deploy.gate.assess import assess_elsewhere
from fedloom.deploy.gate.confined import OUT_OF_MEMORY, OutOfBounds, most_memory, run_confined
from fedloom.deploy.gate.form import Assessment
from fedloom.deploy.site.config import SiteConfig

ASSESS = "fedloom.deploy.gate.assess"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "site.toml"
    file.write_text('name = "a"\ndata = "x.npz"\nstate = "state"\nmost_memory = "400 MB"\n')
    return file


def run(file: Path, statement: str) -> subprocess.CompletedProcess[str]:
    """In a process that is confined as the site's file says."""
    code = (
        "from fedloom.deploy.gate.confined import confined; from pathlib import Path\n"
        f"with confined(Path({str(file)!r})):\n    {statement}"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_it_takes_no_more_memory_than_the_site_gives(file: Path) -> None:
    assert run(file, "bytearray(10**6)").returncode == 0
    assert run(file, "bytearray(10**9)").returncode == OUT_OF_MEMORY
    torch = "import torch; torch.zeros(10**9)"
    assert run(file, torch).returncode == OUT_OF_MEMORY
    higher = "import resource as r; r.setrlimit(r.RLIMIT_DATA, (-1, -1))"
    assert "not allowed to raise maximum limit" in run(file, higher).stderr


@pytest.mark.parametrize(
    "statement",
    [
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import socket; socket.socket().connect(('127.0.0.1', 9))",
        "import urllib.request as u; u.urlopen('http://127.0.0.1:9/weights.safetensors')",
    ],
)
def test_it_connects_to_nobody(file: Path, statement: str) -> None:
    done = run(file, statement)
    assert done.returncode == 1
    assert done.stderr.startswith("nothing is downloaded before a proposal is approved")


def test_the_libraries_of_hubs_are_told_to_stay_offline(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}

    def ended(command: list[str], **keys: Any) -> subprocess.CompletedProcess[str]:
        seen.update(keys)
        return subprocess.CompletedProcess(command, -9, "", "")

    monkeypatch.setattr(subprocess, "run", ended)
    with pytest.raises(OutOfBounds, match=r"more than 400 MB of memory to judge it; most_memory"):
        run_confined(ASSESS, file, ["abc"], Assessment)
    assert seen["env"]["HF_HUB_OFFLINE"] == seen["env"]["TRANSFORMERS_OFFLINE"] == "1"


def test_what_takes_too_long_is_refused_and_not_judged_again_and_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confined, "SECONDS", 0.01)
    (refusal,) = assess_elsewhere(file, "abc", False).refusals
    assert refusal.rule == "judging"
    assert refusal.in_full == "it takes over 0.01 s to judge it"


def test_without_a_key_it_is_half_of_the_machines_memory(file: Path) -> None:
    assert most_memory(SiteConfig.read(file)) == 400_000_000
    file.write_text(file.read_text().replace("most_memory", "# most_memory"))
    assert most_memory(SiteConfig.read(file)) > 10**8


def test_a_huge_network_is_refused_by_a_sentence(tmp_path: Path) -> None:
    """10^12 numbers would be 4 TB; the server may propose them, and waits for nobody."""
    with gated_site(tmp_path) as site:
        huge = {"model": "mlp(hidden=[1000000, 1000000], norm=batch)"}
        left = site.ask(site.order(), override=huge)
        assert "more than the 200,000,000 numbers this site permits" in left.error
        assert site.rules() == ["most_parameters"]
        assert site.desk.waiting() == []
        wide = {"method": "fedavg + dann(width=100000000)"}
        site.say('allow = ["odd_settings", "class_counts", "unknown", "dense_layers"]')
        assert "numbers this site permits" in site.ask(site.order(), run_id=2, override=wide).error


def test_images_are_not_read_in_a_size_that_is_refused(tmp_path: Path) -> None:
    with gated_site(tmp_path) as site:
        order = site.order()
        (site.file.parent / "data.npz").unlink()  # whoever read it would fail
        left = site.ask(order, override={"image_size": 100_000})
        assert "image_size = 100000 is more than the 1024 pixels" in left.error
