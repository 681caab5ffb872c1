# `make demo` and `make test` each start from a bare clone: Python 3.11 or newer and make are all they need.
#
#   EXTRA=cpu|cuda   what to install; default: cuda where NVIDIA's driver lists a GPU, else cpu
#   PYTHON=python3.x which Python; default: the first of 3.11 or newer
#   PARALLEL=        integration tests one after another; default: two test files at once
#   TORCH_INDEX=URL  where torch's CPU build comes from; empty: only where pip's own settings point

EXTRA ?= auto
VENV ?= .venv
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
OUT ?= out/demo
# Most of an integration test is one process that imports and loads: two side by side keep two cores busy.
PARALLEL ?= -n 2 --dist loadfile --no-loadscope-reorder
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
INSTALL = $(PYTHON) scripts/install.py --venv $(VENV) --extra $(EXTRA) --torch-index "$(TORCH_INDEX)"

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-fast lint format unit hooks integration browser install dev clean python

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: install ## install if needed, then make text, speech and a picture
	$(BIN)/omni generate --profile tiny-omni --output-dir $(OUT)/speech "hello"
	$(BIN)/omni generate --profile tiny-image --output-dir $(OUT)/picture "a red lighthouse at dusk"
	@echo "Done. The files are in $(OUT)/speech and $(OUT)/picture. The weights are random, so is what they say."

test: lint unit integration ## install if needed, then everything that a change must pass

lint: dev ## style, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: dev ## rewrite the code in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test-fast: dev ## in under 20 s: the unit tests but those that simulate, draw pages or start processes
	@$(BIN)/python -m pytest -q tests/unit -m "not slow"

unit: dev ## all unit tests, without torch
	@$(BIN)/python -m pytest -q tests/unit

hooks: dev ## check style at each commit, types and imports at each push (pre-commit)
	@$(BIN)/pre-commit install --hook-type pre-commit --hook-type pre-push

integration: dev ## tests on real vLLM and diffusers, and on a CUDA device where there is one
	@$(BIN)/python -m pytest -q $(PARALLEL) tests/integration tests/gpu

browser: ## Chromium for the tests of the report's page, where that can be installed
	@scripts/install_browser.sh

install: python ## the environment for running
	@$(INSTALL)

dev: python ## the environment for running and for changing the code
	@$(INSTALL) --dev

clean: ## remove the environment, build output and caches
	rm -rf $(VENV) build dist out .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found" >&2; echo >&2; \
	  echo "hint: install one from python.org, your distribution or pyenv, or name it: make demo PYTHON=/path/to/python3.11" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is older than Python 3.11, or does not run" >&2; exit 1; }
