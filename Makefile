# One command for each job; `make help` lists them. VENV, PYTHON and TORCH can be set on the command line.
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= 2.13.0
BIN    := $(VENV)/bin
CARGO_TEST := $(shell cargo nextest --version >/dev/null 2>&1 && echo "nextest run" || echo "test -q")
SOURCES := $(shell find crates python/unisono -name '*.rs' -o -name '*.toml' -o -name '*.py' -o -name '*.pyi' -o -name '*.html' -o -name '*.h') Cargo.toml Cargo.lock pyproject.toml

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-pipeline test check lint format bench clean rust-test python-test

help: ## list the jobs
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-12s %s\n", $$1, $$2}'

$(BIN)/python:
	@scripts/require.sh "$(PYTHON)" 10
	$(PYTHON) -m venv $(VENV)

$(VENV)/.torch-$(TORCH): | $(BIN)/python
	@echo "installing PyTorch $(TORCH) ..." >&2
	$(BIN)/python -m pip install -q "torch==$(TORCH)" "maturin>=1.7,<2" "msgpack>=1.0" "numpy>=1.26"
	@touch $@

$(VENV)/.test-tools: $(VENV)/.torch-$(TORCH) pyproject.toml scripts/test-requirements.txt
	$(BIN)/python -m pip install -q -r scripts/test-requirements.txt
	@touch $@

# The release wheel, built and installed whenever a source is newer. Cargo says what fails, not what it downloads.
$(VENV)/.wheel: $(VENV)/.torch-$(TORCH) $(SOURCES)
	@scripts/require.sh "$(PYTHON)"
	@echo "building Unisono ..." >&2
	rm -rf dist && CARGO_TERM_QUIET=true $(BIN)/maturin build --release --quiet --interpreter $(BIN)/python --out dist
	$(BIN)/python -m pip install -q --force-reinstall --no-deps dist/*.whl
	@touch $@

setup: $(VENV)/.wheel ## create the environment, build and install the wheel

demo: $(VENV)/.wheel ## train a GPT over four local ranks, beside one process
	@$(BIN)/python scripts/demo.py

demo-pipeline: $(VENV)/.wheel ## the same in two stages of two ranks, under a memory limit that one rank could not keep
	@$(BIN)/python scripts/demo.py --pipeline

test: $(VENV)/.wheel $(VENV)/.test-tools ## set up and pass every test
	$(MAKE) --no-print-directory rust-test python-test VENV=$(VENV)

rust-test:
	cargo $(CARGO_TEST) --workspace

# Files side by side, one for each core, with a thread each, those that take longest first; a file's tests share what they start.
python-test:
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 16 --dist loadfile --no-loadscope-reorder

check: lint test ## format and lints as errors, then all tests

lint: $(VENV)/.wheel $(VENV)/.test-tools
	cargo fmt --check
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.test-tools ## format all sources in place
	cargo fmt
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix-only --quiet .

clean: ## remove what was built, the environment included
	rm -rf target dist $(VENV)
