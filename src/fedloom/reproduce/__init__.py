"""The tables of the papers: their settings and printed numbers as files, run with one command.

`format` reads a file `reproduce/PAPER/TABLE.toml`, `library` finds it, `quantities` says what a run
tells about a printed number, `results` keeps what was measured, `measure` runs cells, `dry_run`
plays them with small data, `terminal` and `page` show paper and measurement side by side.
"""
