# Everything a person or CI does with a checkout. `make help` lists it.
# Each target installs what it needs into .venv; a second call finds that done.

VENV := .venv
BIN := $(VENV)/bin
# Tried in this order; `make PYTHON=/path/to/python` puts yours first.
PYTHONS := $(PYTHON) python3 python3.13 python3.12 python3.11

# Of a GPU machine: a Python with torch for CUDA, transformers and pytest, and where results go.
GPU_PYTHON := python3
GPU_OUT := gpu-results

.PHONY: help install demo test check format docs gpu clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

install: $(VENV)/installed  ## the commands, in .venv/bin

demo: $(VENV)/installed  ## search the embedded default; print the best configuration and why
	$(BIN)/dflash-tune search --study-dir dflash-study --trials 6 --repeats 1

test: $(VENV)/installed-dev  ## the whole test suite
	$(BIN)/python -m pytest

check: $(VENV)/installed-dev  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/installed-dev  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/installed-dev  ## rewrite what is generated from the code
	$(BIN)/python scripts/knob_table.py > docs/knobs.md
	$(BIN)/python benchmarks/tables.py > docs/benchmarks/tables.md

# In order of worth, each with a limit, in all 12 minutes. Results are written as they come, so that a session that
# is cut off has shown what it ran. Compiled code is kept by torch, so the first 8B shape pays for the others.
gpu:  ## on a GPU machine: its tests and the benchmarks, results in gpu-results/
	@mkdir -p $(GPU_OUT)
	-timeout 110 $(GPU_PYTHON) benchmarks/memory_plan.py --only 8b-chunks,8b-whole,1.7b --jobs 3 \
	  --out $(GPU_OUT)/memory_plan.json
	-timeout 170 $(GPU_PYTHON) benchmarks/pipeline.py --settings small mixed --runs peer 2-2 pinned colocated \
	  --batches 16 --out $(GPU_OUT)/pipeline_hard.json
	-timeout 50 $(GPU_PYTHON) benchmarks/ordering_mutations.py --gpu --jobs 8 --limit 20 --out $(GPU_OUT)/ordering.json
	-timeout 90 $(GPU_PYTHON) benchmarks/target_forward.py --part hybrids --hybrid-layers 8 --rounds 3 \
	  --out $(GPU_OUT)/hybrids.json
	-timeout 115 $(GPU_PYTHON) benchmarks/whatif_on_gpus.py --limit-s 105 --out $(GPU_OUT)/whatif
	-timeout 180 $(GPU_PYTHON) -m pytest -q -m gpu tests/gpu 2>&1 | tee $(GPU_OUT)/tests.txt

clean:  ## remove .venv and caches; runs and studies stay
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	@for python in $(PYTHONS); do \
	  if $$python -c 'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	    echo "$$python -m venv $(VENV)"; exec $$python -m venv $(VENV); \
	  fi; \
	done; \
	echo "dflash-tune needs Python 3.11, 3.12 or 3.13 with venv; found none of: $(strip $(PYTHONS))." >&2; \
	echo "Install one, or name it: make PYTHON=/path/to/python" >&2; \
	exit 2

$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
