# Two commands for a fresh machine with Python >= 3.11, pip, make and a C compiler:
#   make demo    compares methods on embedded data
#   make test    runs the tests
# Both set up .venv themselves and set it up again when pyproject.toml or constraints.txt change.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt

# Stamps, because the files of a virtual environment are links whose dates say nothing.
CREATED := $(VENV)/.created
PACKAGE := $(VENV)/.package-installed
TESTING := $(VENV)/.test-extras-installed

# Real data sets, where they are at hand; tests that need them are skipped, and listed, where they are not.
PLAUSIBLE_DATA ?= $(shell cd ../shared/data 2>/dev/null && pwd)
ifneq ($(strip $(PLAUSIBLE_DATA)),)
export PLAUSIBLE_DATA
endif

# Two workers with one thread each: more threads than cores make small tensors slower.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

# A warning (a dead link, a page that is not in the navigation) is an error. The variable silences an advertisement.
MKDOCS := NO_MKDOCS_2_WARNING=1 OMP_NUM_THREADS=1 $(BIN)/python -m mkdocs build --strict --quiet

.PHONY: help demo test test-slow lint docs clean

help:
	@echo 'make demo        compare methods on embedded data'
	@echo 'make test        lint, and the tests that take seconds'
	@echo 'make test-slow   the tests that take minutes'
	@echo 'make lint        ruff and mypy'
	@echo 'make docs        the documentation, into site/'
	@echo 'make clean       remove .venv and every cache'

demo: $(PACKAGE)
	$(BIN)/plausible compare

test: $(TESTING)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(MKDOCS)
	$(PYTEST) -m "not slow"

# pytest answers 5 when it collected nothing: right as long as no test is marked slow, and a broken run after that.
test-slow: $(TESTING)
	@status=0; \
	$(PYTEST) -m slow || status=$$?; \
	if [ $$status -eq 5 ] && ! grep -rqs --include='test_*.py' 'mark[.]slow' tests; then \
		echo 'no test is marked slow yet'; status=0; \
	fi; \
	exit $$status

lint: $(TESTING)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(TESTING)
	$(MKDOCS)
	@echo 'built site/; to read it: $(BIN)/python -m http.server --directory site'

clean:
	rm -rf site $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "plausible needs Python >= 3.11, and $(PYTHON) is $$($(PYTHON) --version 2>&1 || true); try: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(PACKAGE): pyproject.toml constraints.txt | $(CREATED)
	$(PIP) -e .
	@touch $@

$(TESTING): pyproject.toml constraints.txt | $(CREATED)
	$(PIP) -e '.[test]'
	@touch $@ $(PACKAGE)
