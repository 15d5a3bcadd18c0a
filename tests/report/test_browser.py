"""The page under the hand: sorting, reading values, hiding curves, dark, on a phone, on paper."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from browser import chromium, opened
from folders import write_run
from test_page import EVIL

import fedloom as fl
from fedloom.diagnose.diagnostics.tsne import NeighbourPurity, TsneResult
from fedloom.record import Finding, dump
from fedloom.report.page import report
from helpers import fedloom, wait_until

pytestmark = pytest.mark.xdist_group("browser")  # one browser and one page for all


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def address(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Three methods, two seeds, one of them studied; made only where there is a browser."""
    folder = tmp_path_factory.mktemp("browser")
    fl.compare(
        ["local", "fedavg", "fedpac"],
        seeds=[0, 1],
        rounds=4,
        clients=6,
        out=str(folder / "c"),
    )
    done = fedloom("diagnose", folder / "c" / "fedpac-seed0", "--rows", "60", "--clients", "3")
    assert done.code == 0, done.err
    return report([folder / "c"], folder / "report.html").as_uri()


def column(page: Any, table: str, i: int) -> list[str]:
    texts: list[str] = page.locator(f"{table} tbody tr > *:nth-child({i})").all_inner_texts()
    return texts


def is_rising(values: list[float]) -> bool:
    return values == sorted(values) and values != sorted(values, reverse=True)


def gains(page: Any, table: str) -> list[float]:
    texts = column(page, table, 6)
    return [float(t.split(" ")[0].replace("\N{MINUS SIGN}", "-")) for t in texts]


def test_sorting_with_the_mouse_and_with_the_keyboard(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        page.locator("#g0-choice").select_option(label="fedavg")
        table = "#g0-client-1"
        header = page.locator(f"{table} th", has_text="Gain over local")
        header.locator("button").click()
        assert header.get_attribute("aria-sort") == "descending"
        assert is_rising(gains(page, table)[::-1])
        page.keyboard.press("Enter")  # the button has the focus
        assert header.get_attribute("aria-sort") == "ascending"
        assert is_rising(gains(page, table))
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Space")
        assert header.get_attribute("aria-sort") is None
        assert page.locator(f"{table} th[aria-sort]").inner_text().startswith("local %")
        page.locator(f"{table} th button", has_text="Client").click()
        assert column(page, table, 1) == [str(i) for i in range(6)]
        assert page.locator("#announced").inner_text() == "sorted by Client, ascending"


def test_losing_clients_are_visible(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        page.locator("#g0-choice").select_option(label="fedavg")
        red = page.locator("#g0-client-1 td.loses").first
        assert red.is_visible()
        assert red.inner_text().startswith("\N{MINUS SIGN}")
        assert page.locator("#g0-gain-local path.dot.down").count() > 0
        assert not page.locator("#g0-client-2").is_visible()


def test_hovering_and_arrow_keys_read_values(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        plot = page.locator("#g0-curve-rounds svg.plot")
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert page.locator("#tip").is_hidden()
        page.mouse.move(box["x"] + box["width"] - 16, box["y"] + 40)
        words = page.locator("#tip").inner_text().splitlines()
        assert words[0] == "round 4"
        assert {line.split(":")[0] for line in words[1:]} == {"local", "fedavg", "fedpac"}
        page.mouse.move(5, 5)
        assert page.locator("#tip").is_hidden()
        plot.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        assert page.locator("#announced").inner_text().startswith("round 2, local: ")
        page.keyboard.press("ArrowDown")
        assert page.locator("#announced").inner_text().startswith("round 2, fedavg: ")
        page.keyboard.press("Escape")
        assert page.locator("#tip").is_hidden()


@pytest.mark.parametrize("name", ["gain-local", "weights-2", "d2-cka", "d2-mdl-bal", "d2-tsne-0"])
def test_every_kind_of_chart_is_read_by_keyboard(browser: Any, address: str, name: str) -> None:
    with opened(browser, address) as page:
        plot = page.locator(f"#g0-{name} svg.plot")
        assert "Arrow keys" in plot.get_attribute("aria-label")
        plot.focus()
        announced = set()
        for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
            page.keyboard.press(key)
            announced.add(page.locator("#announced").inner_text())
        assert len(announced) > 1
        assert "" not in announced
        assert "undefined" not in " ".join(announced)


def test_curves_are_hidden_and_shown_in_all_three_charts(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        curves = page.locator("#g0-curves path[data-key=fedavg]")
        assert curves.count() == 3
        button = page.get_by_role("button", name="fedavg", exact=True)
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert curves.count() == 0
        assert page.locator("#g0-curves path[data-key=local]").count() == 3
        page.keyboard.press("Enter")
        assert button.get_attribute("aria-pressed") == "true"
        assert curves.count() == 3


def test_the_model_of_the_curves_can_be_chosen(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        path = page.locator("#g0-curve-rounds path[data-key=fedavg]")
        received = path.get_attribute("d")
        page.locator("#g0-view").select_option(label="after local training")
        assert path.get_attribute("d") != received


def test_rounds_of_the_weights_are_chosen_by_a_slider(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        slider = page.locator("#g0-weights-2-frame")
        assert slider.get_attribute("aria-valuetext") == "round 4"
        last = page.locator("#g0-weights-2 .cell-text").all_text_contents()
        slider.focus()
        page.keyboard.press("Home")
        assert slider.get_attribute("aria-valuetext") == "round 1"
        assert page.locator("#g0-weights-2 .cell-text").all_text_contents() != last


def test_dark_and_light(browser: Any, address: str) -> None:
    def paper(page: Any) -> str:
        colour: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return colour

    with opened(browser, address) as page:
        light = paper(page)
        page.locator("#theme").click()
        dark = paper(page)
        assert dark != light
        assert page.locator("#theme").get_attribute("aria-pressed") == "true"
        page.locator("#theme").click()
        assert paper(page) == light
    with opened(browser, address, color_scheme="dark") as page:
        assert paper(page) == dark
        page.emulate_media(media="print", color_scheme="dark")
        assert paper(page) == "rgb(255, 255, 255)"
        assert not page.locator("#theme").is_visible()


def test_on_a_phone_only_tables_scroll_sideways(browser: Any, address: str) -> None:
    viewport = {"width": 390, "height": 844}
    with opened(browser, address, viewport=viewport, has_touch=True, is_mobile=True) as page:
        wide = "[document.documentElement.scrollWidth, innerWidth]"
        assert page.evaluate(wide) == [390, 390]
        for details in page.locator("details").all():
            details.evaluate("d => { d.open = true; }")
        assert page.evaluate(wide) == [390, 390]
        table = "#g0-accuracy"
        assert page.locator(table).evaluate("t => t.parentElement.scrollWidth > 390")
        assert page.locator("#g0-curve-rounds svg.plot").bounding_box()["width"] > 300
        page.locator(f"{table} th button").nth(2).tap()
        assert page.locator(f"{table} th").nth(2).get_attribute("aria-sort") == "descending"


def test_on_a_phone_a_wide_table_says_that_it_scrolls(browser: Any, address: str) -> None:
    def hint(page: Any) -> str:
        style = "getComputedStyle(document.querySelector('#g0-accuracy caption span'), '::after')"
        text: str = page.evaluate(f"{style}.content")
        return text

    with opened(browser, address, viewport={"width": 390, "height": 844}) as page:
        wait_until(lambda: "Scroll sideways" in hint(page))
        page.locator("#g0-accuracy").evaluate("t => { t.parentElement.scrollLeft = 60; }")
        wait_until(lambda: hint(page) == "none")
    with opened(browser, address) as page:
        assert hint(page) == "none"


def test_headers_explain_themselves_to_mouse_and_keyboard(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        header = page.locator("#g0-fairness th button", has_text="Worst by chance %")
        header.hover()
        assert "served equally well" in page.locator("#tip").inner_text()
        page.mouse.move(5, 5)
        assert page.locator("#tip").is_hidden()
        page.locator("#g0-fairness th button", has_text="without noise").focus()
        assert page.locator("#tip").inner_text().startswith("How much clients really differ")
        assert "luck of their few test rows" in header.get_attribute("aria-description")


def saved(page: Any, button: str) -> tuple[str, str]:
    """Name and text of what a button downloads."""
    with page.expect_download() as download:
        page.locator(button).click()
    return download.value.suggested_filename, Path(download.value.path()).read_text()


def test_tables_are_downloaded_as_csv_and_latex(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        name, text = saved(page, "#g0-accuracy-csv")
        lines = list(csv.reader(text.splitlines()))
        assert name == "g0-accuracy.csv"
        assert lines[0][:3] == ["Method", "Seeds", "Accuracy %"]
        assert [line[0] for line in lines[1:]] == ["local", "fedavg", "fedpac"]
        assert len({len(line) for line in lines}) == 1
        page.locator("#g0-files summary").click()
        name, text = saved(page, "#g0-file-csv-save")
        assert (name, text.split(",")[0]) == ("comparison.csv", "method")
        name, text = saved(page, "#g0-file-tex-save")
        assert name == "comparison.tex"
        assert r"\toprule" in text


def test_charts_are_downloaded_as_svg_that_needs_no_page(browser: Any, address: str) -> None:
    """Colours are written out, hidden curves are left out, and the legend is in it."""
    with opened(browser, address) as page:
        page.get_by_role("button", name="local", exact=True).click()
        name, text = saved(page, "#g0-curve-rounds-svg")
        assert name == "g0-curve-rounds.svg"
        drawing = ElementTree.fromstring(text)
        texts = [node.text for node in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert texts[-2:] == ["fedavg", "fedpac"]
        assert "var(" not in text
        assert "class=" not in text
        strokes = {node.get("stroke") for node in drawing.iter() if node.get("stroke")}
        assert "rgb(196, 78, 0)" in strokes  # the second curve's colour
        assert saved(page, "#g0-partition-svg")[0] == "g0-partition.svg"


def test_on_paper_nothing_is_cut_off(browser: Any, address: str) -> None:
    """A4 within its margins is 182 mm, 688 pixels, wide."""
    with opened(browser, address, viewport={"width": 688, "height": 970}) as page:
        page.emulate_media(media="print")
        tables = page.locator(".scroll:visible > table").all()
        assert len(tables) > 3
        for table in tables:
            box = table.bounding_box()
            assert box["x"] + box["width"] <= 690, table.get_attribute("id")
        assert page.pdf(format="A4").startswith(b"%PDF")


def test_the_skip_link_and_the_order_of_the_keyboard(browser: Any, address: str) -> None:
    with opened(browser, address) as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.keyboard.press("Enter")
        assert page.evaluate("document.activeElement.id") == "main"


def test_without_scripts_the_numbers_are_there(browser: Any, address: str) -> None:
    with opened(browser, address, java_script_enabled=False) as page:
        assert page.locator("#g0-client-0").is_visible()
        assert page.locator("#g0-client-2").is_visible()
        data = page.locator("#g0-curve-rounds-data")
        data.locator("summary").click()
        assert data.locator("tbody tr").count() == 4


@pytest.mark.parametrize("classes", [10, 24])
def test_every_class_has_a_colour_of_its_own(browser: Any, tmp_path: Path, classes: int) -> None:
    points = tuple((float(c), float(side)) for side in range(2) for c in range(classes))
    result = TsneResult(
        points=points,
        labels=(*range(classes),) * 2,
        clients=(0,) * len(points),
        snapshots=("before",) * classes + ("after",) * classes,
        n=len(points),
        different_rows=classes,
        explained=1.0,
        divergence=0.0,
        iterations=1,
        purity={"client": NeighbourPurity(0.5, 0.5, 0.5, 10)},
        silhouette={},
    )
    finding = Finding(1, "tsne", "both", "body", "local-test", {}, dump(result))
    write_run(tmp_path / "a", findings=[finding])
    address = report([tmp_path], tmp_path / "report.html").as_uri()
    with opened(browser, address) as page:
        fills = "marks => marks.map(mark => getComputedStyle(mark).fill)"
        drawn = page.locator("#g0-d0-tsne-0 svg.plot circle").evaluate_all(fills)
        keys = page.locator("#g0-d0-tsne-0 button.key svg path").evaluate_all(fills)
        assert len(drawn) == 2 * classes
        assert len(set(keys)) == classes
        assert drawn == keys * 2  # the legend tells which class it is


def test_labels_do_not_run(browser: Any, tmp_path: Path) -> None:
    write_run(tmp_path / "a", EVIL, [(0.5, 0.6), (0.6, 0.7)])
    write_run(tmp_path / "b", "local", [(0.5, 0.6), (0.6, 0.7)])
    address = report([tmp_path], tmp_path / "report.html").as_uri()
    with opened(browser, address) as page:
        assert page.get_by_role("button", name=EVIL, exact=True).is_visible()
        page.locator("#g0-curve-rounds svg.plot").hover()
        assert EVIL in page.locator("#tip").inner_text()
        assert page.evaluate("window.hacked") is None
