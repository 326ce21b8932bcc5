# make run    the main job, on all three frameworks
# make test   every test
# make lint   what CI checks before the tests
#
# Each makes the virtual environment that it needs, once; `make clean` removes it.
# Own interpreter or flags: make run PYTHON=python3.12 RUN_FLAGS='--workload=mlp --format=json'

PYTHON ?= python3
VENV ?= .venv
MPI4JAX ?= mpi4jax==0.9.1.post2
RUN_FLAGS ?= --workload=mlp,transformer --compiler=compiled
TEST_FLAGS ?=
FRAMEWORKS ?= jax,torch_xla,torch

BIN = $(VENV)/bin
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --quiet

.PHONY: run test lint clean help
.DELETE_ON_ERROR:

run: $(VENV)/.installed-cpu
	$(BIN)/python -m xlacompare.run --framework=$(FRAMEWORKS) $(RUN_FLAGS)

test: $(VENV)/.installed-test $(VENV)/.installed-mpi4jax
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
	$(PIP_INSTALL) -e '.[cpu,mpi,pjrt,test]'
	@touch $@

# No wheel exists. Built against this environment's jax and mpi4py with its mpicc, for the CPU: CUDA_PATH names a folder
# without CUDA, because mpi4jax else takes the folder above the first nvcc on PATH for CUDA's and fails where it is not.
# The floors are those of mpi4jax's own [build-system]. No cache: pip's would give a build against another jax or MPI back.
# A failure leaves no stamp and lets the other tests run; where jax is required (CI) those of JAX over MPI fail then.
$(VENV)/.installed-mpi4jax: $(VENV)/.installed-test
	@echo 'Building $(MPI4JAX) for the tests: about 75 s, once.'
	@{ $(PIP_INSTALL) 'setuptools>=82.0.1' wheel 'nanobind>=2.0' && \
	  PATH="$(abspath $(BIN)):$$PATH" CUDA_PATH='$(abspath $(BIN))' $(PIP_INSTALL) \
	    --no-build-isolation --no-deps --force-reinstall --no-cache-dir '$(MPI4JAX)' && touch $@; } || \
	  echo 'mpi4jax could not be built (see above; needs a C++ compiler): the tests run without JAX over MPI, and the' \
	    'next "make test" tries again (BUILD_NOTES.md, "MPI")'
