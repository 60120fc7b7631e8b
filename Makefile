# Everything runs in .venv, which the first command makes. PYTHON chooses the interpreter.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
READY_DOCS := .venv/.ready-docs
NPM := .venv/npm
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-pure test-page runtime attack lint types contract docs check clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       train three networks side by side on embedded data (a minute)"
	@echo "make test       run the tests"
	@echo "make test-pure  run the tests of dynamic similarity without the compiled operator"
	@echo "make test-page  run the tests of the teaching page in Chromium"
	@echo "make runtime    get onnxruntime-web from npm, for the page that runs a model"
	@echo "make attack     run all attacks: hostile files, folders, command lines, kills (long)"
	@echo "make lint       check style and format"
	@echo "make types      check types"
	@echo "make contract   check who imports whom"
	@echo "make docs       build the documentation into site/"
	@echo "make check      lint, types, contract and test"
	@echo "make clean      remove the environment, the site and caches"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(INSTALL) -e '.[dev]'
	@touch $@

$(READY_DOCS): $(READY)
	$(INSTALL) -e '.[docs]'
	@touch $@

demo: $(READY)
	$(BIN)/nsl train

test: $(READY)
	$(BIN)/python -m pytest

test-pure: $(READY)
	NEURAL_SIMILARITY_COMPILED=0 $(BIN)/python -m pytest -q tests/nn/test_dynamic.py tests/nn/test_dynamic_sequences.py tests/ops/test_similarity_conv.py

test-page: $(READY) runtime $(NPM)/axe-core
	$(BIN)/python -m pytest -n 0 -q -m "browser or slow" tests/page

# Without npm, what needs it is left out: the tests and the page say so.
runtime: $(READY) $(NPM)/onnxruntime-web
	@if [ -s $(NPM)/onnxruntime-web/package.tgz ]; then $(BIN)/python -c 'from pathlib import Path; from neural_similarity.page.takeaway.runtime import install_runtime; install_runtime(Path("$(NPM)/onnxruntime-web/package.tgz"))'; fi

$(NPM)/onnxruntime-web: PACKAGE := onnxruntime-web@1.30.0
$(NPM)/axe-core: PACKAGE := axe-core@4.14.0
$(NPM)/onnxruntime-web $(NPM)/axe-core: | $(READY)
	@mkdir -p $@
	@if command -v npm >/dev/null; then cd $@ && mv "$$(npm pack --silent $(PACKAGE))" package.tgz && tar -xzf package.tgz --strip-components=1 || { rm -rf $(CURDIR)/$@; echo "npm failed: $(PACKAGE) is left out"; }; else echo "no npm: $(PACKAGE) is left out"; fi

attack: $(READY)
	NSL_ATTACKS=all $(BIN)/python -m pytest -q tests/attacks

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

contract: $(READY)
	$(BIN)/lint-imports

docs: $(READY_DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

check: lint types contract test

clean:
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
