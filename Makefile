# make run    the main job, on all three frameworks
# make test   every test
# make lint   what CI checks before the tests
#
# Each makes the virtual environment that it needs, once; `make clean` removes it.
# Own interpreter or flags: make run PYTHON=python3.12 RUN_FLAGS='--workload=mlp --format=json'

PYTHON ?= python3
VENV ?= .venv
RUN_FLAGS ?= --workload=mlp,transformer --compiler=compiled
TEST_FLAGS ?=
FRAMEWORKS ?= jax,torch_xla,torch

BIN = $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --quiet

.PHONY: run test lint clean help
.DELETE_ON_ERROR:

run: $(VENV)/.installed-cpu
	$(BIN)/python -m xlacompare.run --framework=$(FRAMEWORKS) $(RUN_FLAGS)

test: $(VENV)/.installed-test
	$(BIN)/python -m tests.run_all $(TEST_FLAGS)

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p xlacompare.core

help:
	@sed -n 's/^# \{0,1\}//p;/^$$/q' Makefile

clean:
	rm -rf $(VENV) build xlacompare.egg-info

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo 'xlacompare needs Python 3.11 or newer; this is' `$(PYTHON) --version`'. Choose one: make PYTHON=python3.12'; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo 'The virtual environment could not be made (on Debian: apt-get install python3-venv)'; exit 1; }

# Installed in place (-e): the code that runs is this checkout, here and for `import xlacompare` from anywhere.
$(VENV)/.installed-cpu: setup.cfg pyproject.toml | $(BIN)/python
	@echo 'Installing JAX, PyTorch and PyTorch/XLA into $(VENV): about 8 GB and a few minutes, once.'
	$(PIP_INSTALL) -e '.[cpu]'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed-cpu
	$(PIP_INSTALL) -e '.[cpu,test]'
	@touch $@
