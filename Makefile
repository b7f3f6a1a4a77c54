# Everything a newcomer needs: `make demo` and `make test` set themselves up.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check lint types bench clean

demo: $(READY)
	$(BIN)/asyncnn demo

test: check
	$(BIN)/pytest -q --cov --cov-report=term

check: lint types

bench: $(READY)
	$(BIN)/asyncnn bench models
	$(BIN)/asyncnn bench awaiting

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

$(READY): pyproject.toml
	command -v $(PYTHON) >/dev/null || { echo "Python 3.11 is needed; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
