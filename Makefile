# Every target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.
#
#   make compare    every optimizer and its memory twins on the bundled digits: a table and report.html
#   make test       the tests                         make test-all   the slow ones too
#   make test-kernels, test-rest: the two halves of make test, Triton's kernels and everything else
#   make test-sanitized: the native core's tests under AddressSanitizer and UndefinedBehaviorSanitizer; part of test-all
#   make doctest    the examples in the docstrings    make lint       ruff: rules and format
#   make types      mypy                              make coverage   test-all, then htmlcov/
#   make docs       the documentation, in build/site  make results    pages and figures from the published ledgers
#   make suite      build/suite.html: the report of the published ledgers
#   make bench      step times and memory             make clean      remove what make made
#
# ARGS is handed on: make test ARGS="-k checkpoint", make compare ARGS="--seeds 10".

PYTHON ?= python3
VENV   ?= .venv
ARGS   ?=

BIN   := $(VENV)/bin
READY := $(VENV)/.ready

# Two test processes with one thread each: more threads than cores make small tensors slower.
THREADS := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
PYTEST  := $(THREADS) $(BIN)/python -m pytest -n 2
COV     := --cov=critgrad --cov-report=term
TRITON  := triton==3.6.0

# The kernels run in Triton's interpreter, which must be chosen before Triton is imported: a process of their own.
KERNELS := TRITON_INTERPRET=1 $(PYTEST) tests/kernels -W ignore::DeprecationWarning

.DEFAULT_GOAL := help
.PHONY: help setup compare test test-all test-kernels test-rest test-sanitized doctest lint format types coverage docs results suite bench clean

help:
	@sed -n '/^#   make/s/^# //p' Makefile

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "critgrad needs Python >= 3.10; set PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Setting up $(VENV) (once, a few minutes)"
	$(PYTHON) -m venv $(VENV)
	@# No bytecode ahead of time: two thirds of these 300 MB of Python are never imported, the rest is compiled on the way.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[cluster,dev,docs,integrations,lab,parquet]'
	@# Builds of torch for CUDA bring the Triton they need; beside a CPU build any will do, for the interpreter.
	@[ "$$(uname)" != Linux ] || $(BIN)/python -c 'import triton' 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check $(TRITON)
	@touch $@

setup: $(READY)

compare: $(READY)
	$(BIN)/critgrad compare $(ARGS)

test: $(if $(ARGS),,test-kernels) test-rest

test-rest: $(READY)
	$(PYTEST) -m "not slow" --ignore=tests/kernels $(ARGS)

test-kernels: $(READY)
	$(KERNELS) -m "not slow"

test-sanitized: $(READY)
	$(BIN)/python tests/sanitize/run.py $(ARGS)

test-all: $(READY) $(if $(ARGS),,test-sanitized)
	$(if $(ARGS),,$(KERNELS))
	$(PYTEST) --ignore=tests/kernels $(ARGS)

doctest: $(READY)
	$(THREADS) $(BIN)/python -m pytest --doctest-modules src/critgrad $(ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY)
	$(BIN)/mypy

coverage: $(READY)
	$(PYTEST) $(COV) --cov-report=html $(ARGS)

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

results: $(READY)
	$(BIN)/python -m critgrad.paper.results_page results/*.db.xz --out docs

# In no comparison: what was withdrawn, searches and the tasks they chose, runs that only show that a task trains.
NOT_IN_SUITE := withdrawn search every-task rare-tasks
SUITE := $(filter-out $(NOT_IN_SUITE:%=results/%.db.xz),$(wildcard results/*.db.xz))

suite: $(READY)
	mkdir -p build && rm -f build/suite.db
	$(BIN)/critgrad merge build/suite.db $(SUITE)
	$(BIN)/critgrad report --ledger build/suite.db --out build/suite.html --title "critgrad: the suite" $(ARGS)

bench: $(READY)
	$(BIN)/python benchmarks/step_time.py $(ARGS)

clean:
	rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
	rm -rf src/critgrad.egg-info
