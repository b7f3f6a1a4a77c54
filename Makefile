# Everything a newcomer needs: `make demo` and `make test` set themselves up.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

ON_UVLOOP := $(addprefix tests/,fmq fences burst service runtime pipeline)

.PHONY: demo test test-uvloop coverage check lint types bench simulate docs clean

demo: $(READY)
	$(BIN)/asyncnn demo

test: check
	$(BIN)/pytest -q
	$(MAKE) test-uvloop

# What waits on the loop, on another one. Processes that tests start stay on asyncio.
test-uvloop: $(READY)
	$(BIN)/pytest -q --loop uvloop $(ON_UVLOOP)

# Twice as long; fails below the floor in pyproject.toml.
coverage: $(READY)
	$(BIN)/pytest -q --cov --cov-report=term

check: lint types

bench: $(READY)
	$(BIN)/asyncnn bench models
	$(BIN)/asyncnn bench kernels
	$(BIN)/asyncnn bench awaiting
	$(BIN)/asyncnn bench service
	$(BIN)/asyncnn bench burst
	$(BIN)/asyncnn bench fence
	$(BIN)/asyncnn bench qos
	$(BIN)/asyncnn bench cache
	$(BIN)/asyncnn bench responsiveness

# A million requests of each pattern through the scheduling policy, and the least share
# of lane time that a client gets in any 200 ms.
simulate: $(READY)
	ASYNCNN_SIMULATED_REQUESTS=1000000 $(BIN)/pytest -q tests/qos/test_simulation.py tests/qos/test_fairness.py

docs: $(READY)
	$(BIN)/python -m docs.operations_page

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

$(READY): pyproject.toml asyncnn/fmq/_ring.c
	$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
