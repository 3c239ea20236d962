# Everything a newcomer needs: `make demo`, `make test`. Each makes its own virtual environment in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test test-slow check format proto bench clean

help:
	@echo "make demo       a coordinator and four sites, as processes over mutual TLS, on the example labels"
	@echo "make test       run the tests"
	@echo "make test-slow  run the tests that take minutes"
	@echo "make check      lint, format check, types, import rules"
	@echo "make format     format the code"
	@echo "make proto      generate the stubs of the wire contract again"
	@echo "make bench      benchmarks: ratios measured in one run"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ce needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/demo.py --out build/demo

test: $(READY)
	$(BIN)/python -m pytest -q -n 2

test-slow: $(READY)
	$(BIN)/python -m pytest -q -n 2 -m slow --timeout 1800

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check

proto: $(READY)
	$(BIN)/python proto/generate.py

bench: $(READY)
	$(BIN)/python benchmarks/bench_engine.py
	$(BIN)/python benchmarks/bench_service.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
