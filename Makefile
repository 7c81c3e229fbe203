# `make demo` and `make test` do all their own set-up; `make` alone lists everything.
# PYTHON=... chooses the Python that .venv is made with; ARGS=... is passed on to pytest, the demo
# or the bench.

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast servers lint format docs pictures bench bench-memory matrix soak endurance lock clean run-env dev-env

BIN := .venv/bin
CODE := $(wildcard src tests bench examples)
ROUNDS ?= 10
SEED ?= $(shell date +%s)
MINUTES ?= 60

# Tests mostly wait: for a disk, a server, a clock. Three processes, each with servers of its own; a
# class or a file stays in one of them. `make test TOGETHER=` runs them one by one.
TOGETHER ?= --numprocesses 3 --dist loadscope --no-loadscope-reorder

# Tests start thousands of processes. Where nothing may be kept, each compiles Limpet anew.
export PYTHONDONTWRITEBYTECODE :=

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s%s\n", $$1, $$2 }' Makefile

demo: run-env ## watch an agent get killed and carry on
	@$(BIN)/limpet demo $(ARGS)

test: lint servers ## check everything: style, types, and every test, against real servers
	@echo '· Running the tests'
	@$(BIN)/python -m pytest $(TOGETHER) -m 'not long' $(ARGS)

test-fast: dev-env ## run the tests that need no server and little time
	@$(BIN)/python -m pytest $(TOGETHER) -m 'not (long or server or slow or soak)' $(ARGS)

servers: ## install the servers that the tests start
	@tools/servers

lint: dev-env ## check style and types
	@echo '· Checking style'
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/ruff format --quiet --check $(CODE)
	@echo '· Checking types'
	@$(BIN)/mypy $(CODE)

format: dev-env ## put the code into shape
	@$(BIN)/ruff check --quiet --fix-only $(CODE)
	@$(BIN)/ruff format $(CODE)

docs: dev-env ## build the documentation, with the API reference, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet
	@echo '· site/index.html'

pictures: dev-env servers ## take the inspector's pictures for docs/ anew; ARGS="home task" for some
	@$(BIN)/python -m tools.pictures $(ARGS)

bench: dev-env servers ## measure against the raw insert
	@$(BIN)/python -m bench $(ARGS)

bench-memory: dev-env ## measure recall on LoCoMo, DATA=path/to/locomo10.json, and on BEAM=directory
	@test -n '$(DATA)' || { echo 'Say where the data is: make bench-memory DATA=path/to/locomo10.json'; exit 2; }
	@$(BIN)/python -m bench.memory '$(DATA)' $(if $(BEAM),--beam '$(BEAM)') $(ARGS)

matrix: dev-env ## kill a task at each of its writes, and print what became of it
	@rm -rf .matrix && $(BIN)/python -m tests.support.matrix sqlite:.matrix/place.db sync; rm -rf .matrix

soak: dev-env servers ## run all of the matrices, and the crash tests ROUNDS=10 times as long
	@LIMPET_SOAK=$(ROUNDS) LIMPET_SEED=$(SEED) $(BIN)/python -m pytest -m 'soak or long' --timeout 0 $(ARGS)

endurance: dev-env ## keep every model at work under kills, for MINUTES=60, and see that nothing grows
	@$(BIN)/python -m tests.support.endurance .endurance $(MINUTES) && rm -rf .endurance

# Names no index, so that it installs from any mirror. Pins are kept; UPGRADE=1 moves them all.
# uv itself is not pinned: what it writes is.
COMPILE = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' \
	$(if $(UPGRADE),--upgrade)

lock: ## pin versions and hashes again after a change of dependencies
	@tools/setup
	@$(BIN)/python -m pip --disable-pip-version-check -qq install uv
	@echo '· Writing requirements/*.txt'
	@$(COMPILE) pyproject.toml --output-file requirements/run.txt
	@$(COMPILE) --group build --output-file requirements/build.txt
	@$(COMPILE) pyproject.toml --all-extras --group dev --constraints requirements/run.txt \
		--constraints requirements/build.txt --output-file requirements/dev.txt

clean: ## remove everything that was made here
	@rm -rf .venv .servers site .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

run-env:
	@tools/setup run

dev-env:
	@tools/setup dev
