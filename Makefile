# Everything runs in .venv, which the first command makes. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help demo test test-pure check lint types contract clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    set up, then train three networks side by side on embedded data (a minute)"
	@echo "make test    set up, then run the tests"
	@echo "make test-pure  the dynamic tests once more, without the compiled operator"
	@echo "make check   lint, types, import contract and tests"
	@echo "make clean   remove the environment and caches"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/nsl train

test: $(READY)
	$(BIN)/python -m pytest

test-pure: $(READY)
	NEURAL_SIMILARITY_COMPILED=0 $(BIN)/python -m pytest -q tests/test_dynamic.py tests/test_dynamic_sequences.py tests/test_similarity_conv.py

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

contract: $(READY)
	$(BIN)/lint-imports

check: lint types contract test

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
