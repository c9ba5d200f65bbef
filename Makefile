# On a new machine: make run, make test. Both make .venv by themselves; PYTHON chooses the interpreter.

PYTHON ?= python3
RUN ?= runs/digits
# Another version of torch gets an environment of its own: make tests TORCH=2.11.0 PYTHON=python3.12
TORCH ?= 2.13.0
ifeq ($(TORCH),2.13.0)
VENV := .venv
CONSTRAINTS := constraints.txt
else
VENV := .venv-torch-$(TORCH)
CONSTRAINTS := $(VENV)/constraints.txt
endif
BIN := $(VENV)/bin
# Always with the constraints, and torch by its exact version beside them: without them an installer may pick another
# build. Nothing is byte-compiled in advance: the interpreter compiles the modules that are really imported.
INSTALL := $(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c $(CONSTRAINTS)

# Every process of a run imports torch: without its compiled bytecode on disk that is seconds each time.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test types tests torture outside study bench gpu gpu-wheels dist docs proto clean
.DEFAULT_GOAL := help

help:
	@echo "make run      install what a run needs, train the digits task (an interrupted run continues)"
	@echo "make test     install the rest, then ruff, mypy and pytest"
	@echo "make torture  the long tests: all cases, hundreds of kills, damaged files"
	@echo "make outside  tests against real servers and programs; those that are not installed are skipped by name"
	@echo "make study    accuracy of runs in trouble, with seeds and with pruning: tables, half an hour"
	@echo "make gpu      everything that needs a CUDA device, in eight minutes, without a network; says so without one"
	@echo "make gpu-wheels  fetch the packages that make gpu needs beside torch, to travel with this folder"
	@echo "make bench    prices of the hot paths, printed"
	@echo "make dist     build the wheel and the sdist in dist/"
	@echo "make docs     write the generated pages and pictures under docs/ again"
	@echo "make proto    generate the code of the messages below proto/ again"
	@echo "make clean    remove caches, environments and wheels; runs/ is yours and stays"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) \
	  and "Python 3.11 or newer is needed; try make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# Versions of torch differ in the setuptools that they accept.
$(VENV)/constraints.txt: constraints.txt | $(BIN)/python
	sed -e '/^setuptools==/d' -e 's/^torch==.*/torch==$(TORCH)/' constraints.txt >$@

# hatchling first, so that the project itself is installed without fetching a build environment of its own.
$(VENV)/.installed-run: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	$(INSTALL) hatchling torch==$(TORCH)
	$(INSTALL) --no-build-isolation --editable ".[examples]"
	@touch $@

# timm (an oracle for the optimizer's tests) without its dependencies: torchvision among them replaces torch.
$(VENV)/.installed-dev: $(VENV)/.installed-run
	$(INSTALL) --no-build-isolation --editable ".[dev]"
	$(INSTALL) --no-deps timm
	@touch $@

# What tests against other programs read with. One that cannot be installed here is skipped by name.
$(VENV)/.installed-outside: $(VENV)/.installed-dev
	-$(INSTALL) --no-build-isolation --editable ".[bus,oracle,otel]"
	@touch $@

# The stores to measure against. One that cannot be installed here is skipped in the tables, with its reason.
$(VENV)/.installed-bench: $(VENV)/.installed-dev
	-$(INSTALL) --no-build-isolation --editable ".[bench]"
	@touch $@

run: $(VENV)/.installed-run
	$(BIN)/tolariad run --task digits --dir $(RUN)

test: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(MAKE) --no-print-directory -j2 types tests

# Side by side: together they are shorter than one after the other.
types: $(VENV)/.installed-dev
	$(BIN)/mypy

# Many tests wait for processes, timers and disks: with three forks two cores were idle for a fifth of the time.
tests: $(VENV)/.installed-dev
	$(BIN)/python -m pytest -n 4 $(PYTEST_OPTIONS)

# These tests take minutes by design, so they print no stacks: printing may end the interpreter (see pyproject.toml).
LONG := -o faulthandler_timeout=0

torture: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(LONG) -m torture -s

outside: $(VENV)/.installed-outside
	$(BIN)/python -m pytest $(LONG) -m outside -s

study: $(VENV)/.installed-dev
	$(BIN)/python -m pytest $(LONG) -m study -s

bench: $(VENV)/.installed-bench
	$(BIN)/python -m pytest $(LONG) -m bench -s

# Without a build environment of its own: hatchling is installed, and nothing is fetched.
dist: $(VENV)/.installed-dev
	rm -rf dist
	$(BIN)/python -m hatchling build
	@ls -l dist

# With this folder's environment if there is one, else with the machine's interpreter, which must have torch.
gpu:
	@$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu $(GPU)

gpu-wheels:
	$(PYTHON) -m tests.gpu.wheels .gpu-wheels

docs: $(VENV)/.installed-dev
	$(BIN)/python -m tests.house.pages
	$(BIN)/python -m tests.house.pictures

proto: $(VENV)/.installed-dev
	$(BIN)/python -m tests.house.protos

clean:
	rm -rf .venv .venv-torch-* .gpu-wheels .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find journal tolariad tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
