# The commands of the house. `make help` lists them.

PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev quickstart test drill check fix clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: .venv/.installed ## make .venv with what is needed to train

setup-dev: .venv/.installed-dev ## the same, with what is needed to develop

quickstart: .venv/.installed ## train the built-in corpus, then translate held-out sentences (5 minutes)
	$(BIN)/tmt train --config configs/quickstart.yaml
	$(BIN)/tmt evaluate runs/quickstart --show 5

test: .venv/.installed-dev ## run the test suite (5 to 8 minutes)
	$(BIN)/pytest -m "not drill"

drill: .venv/.installed-dev ## trainings that are killed, damaged or spread over processes (7 to 9 minutes)
	$(BIN)/pytest -m drill

check: .venv/.installed-dev ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

fix: .venv/.installed-dev ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and caches; runs stay
	rm -rf .venv .pytest_cache .ruff_cache dist
	find . -name __pycache__ -not -path './runs/*' -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/.installed-dev: .venv/.installed
	$(INSTALL) -e ".[dev]"
	touch $@
