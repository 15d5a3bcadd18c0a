"""The file of a table: what its cells are, and what is refused, each in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.errors import BadInput
from fedloom.reproduce.format import check_file, read_table


def changed(file: Path, *replacements: tuple[str, str]) -> Path:
    text = file.read_text(encoding="utf-8")
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    file.write_text(text, encoding="utf-8")
    return file


def test_cells_are_rows_in_columns_and_the_nearest_setting_wins(table_file: Path) -> None:
    table = read_table(table_file)
    assert table.id == "fedpac/table1"
    cells = {(cell.column, cell.row): cell.config for cell in table.cells()}
    assert set(cells) == {("four", "fedavg"), ("four", "fedprox"), ("five", "fedavg")}
    assert cells["five", "fedavg"].clients == 5
    assert (cells["four", "fedprox"].lr, cells["four", "fedprox"].method) == (
        0.02,
        "fedprox(mu=0.2)",
    )
    assert table.printed["accuracy"]["four"]["fedavg"].deviation == 0.5
    assert table.label("fedavg") == "FedAvg"
    assert table.label("fedprox") == "fedprox"


def test_a_digest_follows_the_settings_and_not_the_rounds(table_file: Path) -> None:
    digest = read_table(table_file).cell("four", "fedavg").digest
    longer = read_table(changed(table_file, ("rounds = 2", "rounds = 3")))
    assert longer.cell("four", "fedavg").digest == digest
    other = read_table(changed(table_file, ("lr = 0.05", "lr = 0.06")))
    assert other.cell("four", "fedavg").digest != digest
    assert other.cell("four", "fedprox").digest == longer.cell("four", "fedprox").digest


REFUSED = [
    (("rounds = 2", "round = 2"), "settings: a run has no key 'round'; did you mean 'rounds'?"),
    (("lr = 0.02", "lrate = 0.02"), "rows.fedprox: a run has no key 'lrate'"),
    (("rounds = 2", "rounds = 0"), "row 'fedavg' in column 'four': rounds = 0 will not do"),
    (("mu=0.2", "nu=0.2"), "row 'fedprox' in column 'four': method 'fedprox' has no argument"),
    (('"fedavg"', '"fedagv"'), "row 'fedavg' in column 'four': unknown method 'fedagv'"),
    (('partition = "iid"', 'partition = "irid"'), "in column 'four': unknown partition 'irid'"),
    (("lr = 0.05", 'split = "marged"'), "in column 'four': unknown split 'marged'"),
    (("fedavg = 79", "fedavgg = 79"), "printed.accuracy.mean: there is no row 'fedavgg'"),
    (("accuracy.mean]", "accuracy.men]"), "printed.accuracy: there is no column 'men'"),
    (('["four", "mean"]', '["five"]'), "row 'fedprox' has no column 'four'; add it to"),
    (('["four", "mean"]', '["fore"]'), "rows.fedprox.columns: there is no column 'fore'"),
    (('["four", "five"]', '["mean"]'), "columns.mean.average_of: there is no column 'mean'"),
    (("fedprox.in.four", "fedprox.in.six"), "rows.fedprox.in: there is no column 'six'"),
    (("four = 1.0", "for = 1.0"), "targets.for: there is no column 'for'"),
    (("= 81.5", '= "81.5"'), "fedprox: write a number, or [number, deviation]"),
    (("[80.0, 0.5]", "[80.0, 0.5, 1.0]"), "fedavg: write a number, or [number, deviation]"),
    (("source =", "sauce ="), "unknown key 'sauce'; did you mean 'source'?"),
    (('source = "Table 1"', ""), "source: field required"),
    (("seeds = [0, 1]", "seeds = []"), "seeds: tuple should have at least 1 item"),
    (("lr = 0.05", 'engine = "pool"'), "settings: 'engine' is for whoever runs the table"),
    (("lr = 0.05", 'method = "local"'), "settings: a method belongs to a row"),
    (('absent = "its authors describe it in a picture only"', ""), "rows.stranger: a row has"),
    (("columns.mean]", "columns.mean]\nlr = 0.1"), "a column that is the mean of others"),
    (('data = "digits"', ""), "no `data`; write it in [settings] or [columns.four]"),
    (("[columns.five]", '[columns."5 clients"]'), "the name '5 clients' becomes a folder"),
    (("seeds =", "seeds"), "is not valid TOML"),
    (("seeds =", "tolerance = { points = 2.5 }\nseeds ="), "tolerance.why: field required"),
    (("fedavg = 7\n", 'fedavg = 7\n[remarks.for]\nfedavg = "x"\n'), "remarks: there is no column"),
    (
        ("fedavg = 7\n", 'fedavg = 7\n[remarks.four]\nfedagv = "x"\n'),
        "remarks.four: there is no row 'fedagv'; did you mean 'fedavg'?",
    ),
]


@pytest.mark.parametrize(("replacement", "sentence"), REFUSED, ids=[s for _, s in REFUSED])
def test_what_is_wrong_is_named_with_its_place(
    table_file: Path, replacement: tuple[str, str], sentence: str
) -> None:
    changed(table_file, replacement)
    with pytest.raises(BadInput) as error:
        read_table(table_file)
    assert str(table_file) in str(error.value)
    assert sentence in str(error.value)


def test_a_column_of_no_row_is_refused(table_file: Path) -> None:
    only_four = ("[rows.fedavg]", '[rows.fedavg]\ncolumns = ["four", "mean"]')
    absent = ("absent =", 'columns = ["four"]\nabsent =')
    with pytest.raises(BadInput, match=r"columns\.five: no row has this column"):
        read_table(changed(table_file, only_four, absent))


def test_a_cell_begins_with_an_earlier_one(table_file: Path) -> None:
    lines = ("clients = 5", 'clients = 5\nstart = "cell:four/fedavg"')
    table = read_table(changed(table_file, lines))
    assert table.cell("five", "fedavg").begins_with == ("four", "fedavg")
    assert table.cell("four", "fedavg").begins_with is None
    with pytest.raises(BadInput, match="begins with the cell mean/fedavg, which does not come"):
        read_table(changed(table_file, ("cell:four/fedavg", "cell:mean/fedavg")))


def test_a_check_names_everything_that_is_wrong(table_file: Path) -> None:
    assert check_file(table_file) == []
    changed(table_file, ("lr = 0.05", "lrate = 0.05"), ("fedavg = 79", "fedagv = 79"))
    wrong = check_file(table_file)
    assert len(wrong) == 2
    assert check_file(table_file.with_name("table2.toml"))[0].startswith("cannot read the table")
