# Two commands for everyone: `make demo` and `make test`. The rest are their parts.
PYTHON ?= python3
BIN := .venv/bin
# torch's threads fight over few cores; the engines parallelise over clients instead.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test check lint types docs site notebooks bench constraints audit clean
.DEFAULT_GOAL := demo

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

# Fifty clients, each with some 27 digits to train on, mostly of a few kinds: too few to learn alone, too unlike for one
# model. The five papers' methods beside what they build on, each tested with the model that a client would use: tuned, or
# just trained where it is its own, or as received. DBE's strength times rate and DualFed's rate are their papers'.
DEMO := local fedavg fedavg_ft fedrep 'fedavg + dbe(kappa=5)' 'fedavg + fedbr' 'dualfed(lr=0.01)' fedcr fedpac
demo: .venv/installed
	$(BIN)/fedloom compare $(DEMO) --clients 50 --partition 'dirichlet(alpha=0.3)' --partition-seed 2 --rounds 20 --epochs 5 --seeds 1 --eval-every 5 --protocol 'fedloom(moment=personalized)' --engine pool --out runs/demo --overwrite
	$(BIN)/fedloom report runs/demo --out runs/demo/report.html

# Everything, as CI runs it.
test: lint types
	$(BIN)/pytest -n 3 --dist loadgroup

# The quick tier while you work: lint, types, unit, numeric and the contract on the inline engine.
check: lint types
	$(BIN)/pytest -n 2 -m 'not slow and not deployment' tests/unit tests/numeric tests/contract tests/analysis src

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

docs: .venv/installed
	$(BIN)/python docs/build_api.py
	$(BIN)/python docs/build_methods.py

# The documentation as a site, in build/site.
site: docs
	$(BIN)/python docs/build_site.py

# Run the notebooks of docs/notebooks and keep what they print.
notebooks: .venv/installed
	$(BIN)/python docs/notebooks/run_notebooks.py

# About two hours, on a machine that does nothing else; real data through FEDLOOM_DATA.
bench: .venv/installed
	$(BIN)/python benchmarks/tricks.py
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/scale.py
	$(BIN)/python benchmarks/fedpac_server.py
	$(BIN)/python benchmarks/start.py
	$(BIN)/python benchmarks/side_by_side.py
	$(BIN)/python benchmarks/evaluation.py
	$(BIN)/python benchmarks/diagnostics.py
	$(BIN)/python benchmarks/engines.py
	$(BIN)/python benchmarks/messages.py
	$(BIN)/python benchmarks/deployment.py
	$(BIN)/python benchmarks/page.py

# The whole closure with the sha256 of every package, from what constraints.txt pins.
constraints:
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/pip install --quiet uv
	for extra in flower dev; do .venv-tools/bin/uv pip compile pyproject.toml --extra $$extra -c constraints.txt --generate-hashes --universal --python-version 3.11 --custom-compile-command "make constraints" --annotation-style line --quiet -o constraints/$$extra.txt; done

# Known vulnerabilities of all of them; needs PyPI's JSON pages.
audit:
	$(PYTHON) -m venv .venv-tools
	.venv-tools/bin/pip install --quiet pip-audit
	.venv-tools/bin/pip-audit -r constraints/dev.txt --require-hashes --disable-pip

clean:
	rm -rf .venv .venv-tools runs benchmarks/.peers
