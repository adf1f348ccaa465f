# Development commands. `make help` lists them.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt

# without cached bytecode, each process that the tests start would compile all its modules
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev quickstart test test-all check fix docs docs-serve docs-figures clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: .venv/.installed ## create .venv with the packages for training

setup-dev: .venv/.installed-dev ## create .venv with the packages for development

quickstart: .venv/.installed ## train on the built-in corpus, then translate held-out sentences (1 to 3 minutes)
	$(BIN)/tmt train --config configs/quickstart.yaml
	$(BIN)/tmt evaluate runs/quickstart --show 5

test: .venv/.installed-dev ## run the fast tests (up to 4 minutes on 2 cores)
	$(BIN)/pytest -m "not slow"

test-all: .venv/.installed-dev ## run all tests, also those that train, kill and damage runs (about 15 minutes)
	$(BIN)/pytest

check: .venv/.installed-dev ## run ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

fix: .venv/.installed-dev ## format, and apply the fixes of ruff
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.installed-docs ## build the documentation site into docs/_build/html
	$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html

docs-serve: docs ## build the site and serve it at http://localhost:8000
	$(BIN)/python -m http.server --bind 127.0.0.1 --directory docs/_build/html 8000

docs-figures: .venv/.installed-dev ## draw the figures of the documentation from the quickstart run (trained if missing)
	$(BIN)/python scripts/docs_figures.py

clean: ## remove .venv and caches, but not runs
	rm -rf .venv .pytest_cache .ruff_cache dist docs/_build
	find . -name __pycache__ -not -path './runs/*' -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(INSTALL) -e ".[dev]"
	touch $@

.venv/.installed-docs: .venv/.installed
	$(INSTALL) -e ".[docs]"
	touch $@
