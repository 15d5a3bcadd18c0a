"""The report: one self-contained HTML page from run folders, and the same page while a run goes on.

`runs` reads folders, `groups` decides what compares, `numbers` has the statistics; `summary`,
`curves`, `clients`, `newcomers`, `collaboration`, `diagnostics`, `partition` and `setup` are the
sections; `page` puts them together, `live` serves them and `export` writes CSV and LaTeX. Charts
are data (`fedloom.drawing`) that the page's own script draws.
"""
