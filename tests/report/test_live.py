"""The page of a run that goes on: fed by its folder, and closed to everybody else."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from browser import chromium, opened
from folders import write_run

import fedloom as fl
from fedloom.errors import BadInput
from fedloom.record import RoundRecord
from fedloom.report.live import Live, serving
from fedloom.runs.watcher import RunView, Watcher
from helpers import LIMIT, fedloom, finish, start_fedloom, wait_until

SMALL = {"clients": 4, "partition": "iid", "model": "mlp(hidden=[8])"}


class Slow(Watcher):
    """Gives a reader time, until `seconds` is lowered."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def step(self, run: RunView, record: RoundRecord) -> None:
        time.sleep(self.seconds)


def ask(live: Live, path: str, verb: str = "GET", host: str | None = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", live.port, timeout=LIMIT)
    connection.request(verb, path, headers={"Host": host or f"127.0.0.1:{live.port}"})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def words(page: Any) -> str:
    text: str = page.locator("#live-words").inner_text()
    return text


def shown(page: Any) -> int:
    match = re.match(r"round (\d+) of 80", words(page))
    return int(match[1]) if match else 0


def test_the_round_advances_and_a_page_can_be_closed_and_opened_again(tmp_path: Path) -> None:
    slow = Slow(0.5)
    settings = {**SMALL, "rounds": 80, "out": str(tmp_path / "run")}
    with chromium() as browser, serving(tmp_path / "run") as live:
        watchers = [live, slow]
        run = threading.Thread(target=lambda: fl.run("fedavg", watchers=watchers, **settings))
        try:
            with opened(browser, live.address) as page:
                wait_until(lambda: words(page) == "waiting for the run to begin")
                assert page.locator("#waiting").count() == 1
                run.start()
                wait_until(lambda: page.locator("#g0-curve-rounds path.line").count() == 1)
                first, data = shown(page), page.locator("#g0-curve-rounds-data")
                data.locator("summary").click()
                page.locator("#g0-accuracy th button").nth(2).click()
                rows = data.locator("tbody tr").count()
                wait_until(lambda: data.locator("tbody tr").count() > rows)
                assert shown(page) > first > 0
                assert page.locator("h1").inner_text() == page.title() == "fedavg on digits"
                assert page.locator("#waiting").count() == 0
                assert "running" in words(page)
                # What the reader did has outlived the new numbers.
                assert data.get_attribute("open") is not None
                assert page.locator("#g0-accuracy th").nth(2).get_attribute("aria-sort")
                assert page.evaluate("document.activeElement.id") == "g0-accuracy-sort-2"
                left_at = shown(page)
            with opened(browser, live.address) as page:
                wait_until(lambda: shown(page) > left_at)
                slow.seconds = 0.0
                wait_until(lambda: words(page) == "round 80 of 80, ended")
                assert page.locator("#live-bar").evaluate("b => b.value / b.max") == 1
                assert "fedavg reached" in page.locator("#g0-summary .lead").inner_text()
        finally:
            slow.seconds = 0.0
            run.join(timeout=LIMIT)
        assert not run.is_alive()


def test_a_page_that_lost_its_run_says_so(tmp_path: Path) -> None:
    with chromium() as browser:
        live = Live(write_run(tmp_path / "run", ended=False))
        live.start()
        page = browser.new_page()
        page.goto(live.address)
        wait_until(lambda: words(page) == "waiting for the run to begin")
        live.close(at_once=True)
        wait_until(lambda: words(page) != "waiting for the run to begin")
        assert words(page).startswith("No contact")


def test_an_older_run_in_the_folder_is_not_shown(tmp_path: Path) -> None:
    """--overwrite: until the new run begins, the folder still holds the old one."""
    write_run(tmp_path / "run", "fedper")
    with serving(tmp_path / "run") as live:
        status, text = ask(live, "/data")
        assert status == 200
        assert json.loads(text)["words"] == "waiting for the run to begin"
        assert "fedper" not in text


def test_strangers_and_other_paths_are_refused(tmp_path: Path) -> None:
    """A page elsewhere can make a browser ask, by a name of its own for this address."""
    run = write_run(tmp_path / "run")
    before = sorted(p.name for p in run.iterdir())
    with serving(run) as live:
        assert ask(live, "/")[0] == 200
        assert ask(live, "/", host=f"localhost:{live.port}")[0] == 200
        assert ask(live, "/", host=f"evil.example:{live.port}")[0] == 403
        assert ask(live, "/data", host="127.0.0.1")[0] == 403
        for path in ("/config.json", "/../run/config.json", "/data/", "/%2e%2e/config.json"):
            assert ask(live, path) == (404, "there is only / and /data\n")
        for verb in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert ask(live, "/data", verb)[0] == 501
        assert live.address == f"http://127.0.0.1:{live.port}/"
    assert sorted(p.name for p in run.iterdir()) == before


def test_watching_changes_no_byte_of_a_run(tmp_path: Path) -> None:
    settings = {**SMALL, "rounds": 12}
    alone = fl.run("fedpac", **settings)
    with serving(tmp_path / "run") as live:
        rounds: list[int] = []
        stop = threading.Event()

        def keep_asking() -> None:
            while not stop.is_set():
                rounds.append(json.loads(ask(live, "/data")[1])["done"])

        reader = threading.Thread(target=keep_asking)
        reader.start()
        try:
            out = str(tmp_path / "run")
            watched = fl.run("fedpac", watchers=[live, Slow(0.05)], out=out, **settings)
        finally:
            stop.set()
            reader.join(timeout=LIMIT)
    assert watched.summary.state_sha256 == alone.summary.state_sha256
    assert len(set(rounds)) > 2
    assert rounds == sorted(rounds)


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    sentence = r"cannot serve on port \d+ .*; give another --live-port"
    with serving(tmp_path) as live, pytest.raises(BadInput, match=sentence):
        Live(tmp_path, live.port)


def test_live_on_the_command_line(tmp_path: Path) -> None:
    """The address at the start, a written report at the end, and nothing left running."""
    out = tmp_path / "run"
    keys = [f"{k}={v}" for k, v in SMALL.items()]
    process = start_fedloom("run", *keys, "rounds=3", "--out", out, "--live", "--json")
    done = finish(process)
    assert done.code == 0, done.err
    notes = " ".join(done.err.split())
    address = re.search(r"live report: http://127\.0\.0\.1:(\d+)/", notes)
    assert address is not None
    assert f"report: {out / 'report.html'}" in notes
    assert done.record["rounds"] == 3
    page = (out / "report.html").read_text()
    assert "ended" in page
    assert "<body data-live>" not in page
    assert "<circle" in page
    with pytest.raises(OSError, match="refused"):
        http.client.HTTPConnection("127.0.0.1", int(address[1]), timeout=60).connect()


def test_a_run_that_fails_stops_serving_at_once(tmp_path: Path) -> None:
    done = fedloom("run", "lr=1e30", "rounds=3", "--out", tmp_path / "run", "--live")
    assert done.code == 1
    wait_until(lambda: not [t for t in threading.enumerate() if "serve_forever" in t.name])
