"""The report: one self-contained HTML page from run folders, and the same page while a run goes on.

`runs` reads folders, `groups` decides what compares, `numbers` has the statistics; `summary`,
`curves`, `clients`, `collaboration`, `diagnostics`, `partition` and `setup` are the sections;
`page` puts them together and `live` serves them. Charts are data (`figures`) that the page's own
script draws.
"""
