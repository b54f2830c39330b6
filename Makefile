# Two commands set everything up: `make demo` and `make test`. Needs Python 3.11 or newer and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt
# pytest workers; the suite is sized for two cores.
JOBS ?= 2

# One thread per process: the workers share the cores, and small matrices gain nothing from more.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-all test-generic pythons browser check format bench-quick docs clean clean-cache

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# A stamp per set of packages: nothing is reinstalled until pyproject.toml or constraints.txt changes.
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed and $(PYTHON) is older; run: make PYTHON=python3.11 ..."; exit 1; }
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.base: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing tailwise (the first time takes a few minutes)"
	@$(PIP_INSTALL) --editable '.[watch]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing tailwise with its development tools (the first time takes a few minutes)"
	@$(PIP_INSTALL) --editable '.[dev,docs]'
	@touch $@ $(VENV)/.base $(VENV)/.docs

$(VENV)/.docs: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP_INSTALL) --editable '.[docs]'
	@touch $@ $(VENV)/.base

demo: $(VENV)/.base ## set up, then train a first policy beside its live page, and evaluate it
	@$(BIN)/tailwise demo --watch

test: $(VENV)/.dev ## set up, then the whole fast suite
	@$(BIN)/python -m pytest -n $(JOBS)

test-all: $(VENV)/.dev ## the fast suite and the slow proofs
	@$(BIN)/python -m pytest -n $(JOBS) -m "slow or not slow" --timeout 3600

# Not for this processor alone: what differs by its instructions shows here. numba keeps such code apart.
test-generic: $(VENV)/.dev ## market and kernels compiled for any processor, against their plain twins
	@NUMBA_CPU_NAME=generic $(BIN)/python -m pytest -n $(JOBS) tests/market/test_engine.py tests/market/test_reference.py \
		tests/fused/test_products.py tests/fused/test_inference.py

pythons: ## install the wheel into each Python from 3.11 to 3.13 that is here; it audits itself and trains
	@.ci/pythons

browser: ## Debian's Chromium for the tests that open pages (as root); without it they are skipped
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

# .docs too: an environment from before the pages were checked has no mkdocs.
check: $(VENV)/.dev $(VENV)/.docs ## lint, format, types, order of imports and cycles, pages
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m benchmarks.imports
	@# Not --quiet: it silences the warnings that --strict counts, so nothing would ever fail.
	@$(BIN)/python -m mkdocs build --strict

format: $(VENV)/.dev ## apply the formatter and the safe fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench-quick: $(VENV)/.base ## smoke run of the benchmarks
	@$(BIN)/python -m benchmarks.learning --quick
	@$(BIN)/python -m benchmarks.backends --quick
	@$(BIN)/python -m benchmarks.environment --quick
	@$(BIN)/python -m benchmarks.learnability --quick
	@$(BIN)/python -m benchmarks.planted --quick --only "random walk"
	@$(BIN)/python -m benchmarks.deployed --quick
	@$(BIN)/python -m benchmarks.evidence --quick
	@$(BIN)/python -m benchmarks.speed --quick
	@$(BIN)/python -m benchmarks.faults --quick
	@$(BIN)/python -m benchmarks.risk --quick --only lottery --only ownership --only signs --only minimal

docs: $(VENV)/.docs ## build the documentation into site/
	@$(BIN)/python docs/generate.py
	@$(BIN)/python -m mkdocs build --strict

# Never needed for correct results: what is compiled is kept by the contents of the sources (core/compiled.py).
clean-cache: ## remove the compiled code that is kept beside the sources; it is made again when it is needed
	@find src/tailwise -path '*/__pycache__/*' \( -name '*.nbi' -o -name '*.nbc' \) -delete

clean: ## remove the environment and everything that was built; runs/ is kept
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
