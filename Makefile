PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.stamp

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test test-all test-crash test-faults test-fuzz test-fuzz-long test-hostile test-kills test-mutants test-processors test-processors-short test-soak check verify bench-peers format clean FORCE

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-21s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP)  ## create .venv with fedstride and the development tools
	@:

demo: setup  ## FedAvg with three learning rates against algorithms that were told nothing, on scikit-learn's digits
	@$(VENV)/bin/fedstride compare digits --algorithms "fedavg(lr=0.03),fedavg(lr=0.3),fedavg(lr=3),fedsls,auto" \
		--seeds 1 --target 0.9 --out runs/demo

test: setup  ## run the tests of what matters most (4 minutes)
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 -m "not slow"

test-all: test  ## run all tests: those of `make test`, then the slow ones (27 minutes)
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 -m slow --dist loadfile --no-loadscope-reorder

LONG = OMP_NUM_THREADS=1 $(PY) -m tests
FIGURES = --json docs/reliability.json

test-crash: setup  ## kill runs at random moments, resume them, compare every bit (10 minutes)
	@$(LONG).crash --kills 100 $(FIGURES)

test-faults: setup  ## train with clients that fail, against the same runs without faults (5 minutes)
	@$(LONG).faults_long $(FIGURES)

test-fuzz: setup  ## 10,000 inputs that nobody would give, each a result or a clear error (20 minutes)
	@$(LONG).fuzz --inputs 10000 $(FIGURES)

test-fuzz-long: setup  ## 100,000 such inputs, those on record included (40 minutes)
	@$(LONG).fuzz --inputs 100000 --more $(FIGURES)

test-hostile: setup  ## let one of six clients, a node and strangers' files attack runs (10 minutes)
	@$(LONG).hostile --json docs/hostile.json --page docs/attacks.md

test-kills: setup  ## kill processes, servers and nodes of distributed runs, 20 times each (40 minutes)
	@$(LONG).kills --processes 20 --superlinks 20 --nodes 20 $(FIGURES)

test-mutants: setup  ## break one formula at a time: tests and laws must notice (40 minutes)
	@$(LONG).mutants --page docs/mutants.md

test-processors: setup  ## the numerical tests with the instructions of other processors
	@$(PY) -m tests.processors

test-processors-short: setup  ## fewer of them, under two settings at once
	@$(PY) -m tests.processors --short

test-soak: setup  ## 10,000 rounds, in which memory must not grow (5 minutes)
	@$(LONG).soak $(FIGURES)

check: setup  ## lint, formatting and types
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy

verify: setup  ## check the theory numerically
	@$(VENV)/bin/fedstride verify

docs: $(VENV)/.docs  ## build the documentation site into build/site; a broken link or a missing docstring is an error
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo "The site is in build/site. To read and search it: $(PY) -m http.server -d build/site 8000, then http://localhost:8000"

$(VENV)/.docs: $(STAMP)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

# Each in an environment of its own, because their requirements exclude each other. A failure leaves the others alone.
TORCH := $(shell grep '^torch==' constraints.txt)
INSTALL = $(PYTHON) -m venv --clear .peers/$(1) \
	&& timeout 900 .peers/$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(2) \
	&& echo "bench-peers: $(1) is installed" || { rm -rf .peers/$(1); echo "bench-peers: $(1) could not be installed"; }

bench-peers:  ## install the libraries that `fedstride bench speed` compares with into .peers (3 GB)
	@$(call INSTALL,pfl,$(TORCH) numpy pfl==0.6.0)
	@$(call INSTALL,flower,$(TORCH) numpy 'flwr[simulation]==1.41.0')
	@$(call INSTALL,fedjax,fedjax==0.0.17 dm-haiku==0.0.17 jax==0.10.2)

format: setup  ## fix what can be fixed, and format
	@$(PY) -m ruff check --fix
	@$(PY) -m ruff format

clean:  ## remove .venv, caches and build products
	@rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An environment that is half built, or was built in another folder, counts as out of date.
ifneq ($(shell grep -qsF '$(CURDIR)/$(PY)' $(VENV)/bin/fedstride && $(PY) -c 'import pip' 2>/dev/null && echo whole),whole)
$(STAMP): FORCE
endif

$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): this takes a few minutes the first time."
	@$(PY) -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(PY) -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
