# Everything a newcomer needs: `make demo`, `make test`. Each makes its own virtual environment in .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
READY_TO_BENCH := $(VENV)/.ready-to-bench

MINUTES ?= 20

.PHONY: help demo test test-slow faults soak lab scale check check-deploy format docs proto bench bench-full wheels pin-hashes pin-images rehearse release sbom audit clean

help:
	@echo "make demo       a coordinator and four sites, as processes over mutual TLS, on the example labels"
	@echo "make test       run the tests"
	@echo "make test-slow  run the tests that take minutes"
	@echo "make faults     many fault schedules, and many kills of real processes, in every mode: half an hour"
	@echo "make soak       jobs back to back under faults (MINUTES=20)"
	@echo "make lab        links cut between network namespaces (needs root)"
	@echo "make scale      many sites, many jobs at once, the coordinator's memory"
	@echo "make check      lint, format check, types, import rules, check-deploy"
	@echo "make check-deploy  images, compose file, service units, alerts; by whichever tools are there"
	@echo "make format     format the code"
	@echo "make docs       write the pages of docs/ that say what the code declares"
	@echo "make proto      generate the stubs of the wire contract again"
	@echo "make bench      benchmarks: promised ratios, measured in one run of some minutes (ARGS='--only engine')"
	@echo "make bench-full  more turns, and what takes long (ARGS='--before OTHER/.venv/bin/python --data FOLDER')"
	@echo "make wheels     fetch what the images are built from, for a build without a network"
	@echo "make pin-hashes, make pin-images   write the hashes of packages, and the digest of the base image, into deploy/"
	@echo "make rehearse   docker-compose.yml for real, also with a lost network and a killed coordinator; needs docker"
	@echo "make release    wheel, sdist, images where there is docker, checksums; into dist/"
	@echo "make sbom       the software bill of materials, build/ce.cdx.json"
	@echo "make audit      known vulnerabilities of the dependencies, if a database can be reached"

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ce needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/python examples/demo.py --out build/demo

# Three workers on two cores: tests of real processes mostly wait.
test: $(READY)
	$(BIN)/python -m pytest -q -n 3 --dist worksteal

test-slow: $(READY)
	$(BIN)/python -m pytest -q -n 2 -m slow --timeout 1800

faults: $(READY)
	CE_FAULT_SCHEDULES=6000 CE_FAULT_KILLS=50 $(BIN)/python -m pytest -q -n 2 -m '' --timeout 3600 tests/faults

soak: $(READY)
	$(BIN)/python tests/faults/soak.py --minutes $(MINUTES)

lab: $(READY)
	$(BIN)/python tests/faults/lab.py

scale: $(READY)
	$(BIN)/python tests/faults/scale.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python proto/generate.py --check
	$(BIN)/python docs/generate.py --check
	$(BIN)/python deploy/check.py

check-deploy: $(READY)
	$(BIN)/python deploy/check.py

docs: $(READY)
	$(BIN)/python docs/generate.py

proto: $(READY)
	$(BIN)/python proto/generate.py

# Other software to compare with, and pictures: only the benchmarks need them.
$(READY_TO_BENCH): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@touch $@

bench: $(READY_TO_BENCH)
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-full: $(READY_TO_BENCH)
	$(BIN)/python benchmarks/run.py --full $(ARGS)

wheels: $(READY)
	rm -f deploy/wheels/*.whl
	$(BIN)/python -m pip download --quiet --only-binary :all: --python-version 3.11 --dest deploy/wheels --no-deps --require-hashes --requirement deploy/constraints.txt --requirement deploy/build-constraints.txt

pin-hashes: $(READY)
	$(BIN)/python deploy/pin.py hashes

pin-images: $(READY)
	$(BIN)/python deploy/pin.py images

rehearse: $(READY)
	$(BIN)/python deploy/rehearse.py

release: $(READY)
	$(BIN)/python deploy/release.py

sbom: $(READY)
	@mkdir -p build
	$(BIN)/python deploy/sbom.py --extra fast --extra parquet > build/ce.cdx.json

audit: $(READY)
	@$(BIN)/python deploy/audit.py

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
