# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := data,demo,flow,report,sim,ray,torchmetrics
.DEFAULT_GOAL := help

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed 's/:.*## */\t/' | expand -t 16

.venv/core: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet -e .
	touch $@

.venv/docs: .venv/core
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

.venv/dev: .venv/core
	$(BIN)/python -m pip install --quiet -e ".[$(EXTRAS)]" --group dev
	touch $@

demo: .venv/core  ## follow points through the bundled clip, offline
	$(BIN)/lpa-cwm track --grid 5 --out demo/overlay.mp4 --save demo/tracks.csv

lint: .venv/dev   ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

# One thread for each of the two workers: more would wait for each other.
test: .venv/dev   ## the default suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

test-slow: .venv/dev  ## checks that take minutes
	$(BIN)/python -m pytest -m slow

fuzz: .venv/dev   ## damaged files for all readers, for some minutes
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py --inputs 12000

docs: .venv/docs  ## build the documentation into site/; a broken link or anchor is an error
	$(BIN)/mkdocs build --strict

# The system's Chromium if there is one, else Playwright's own.
.venv/browser: .venv/dev
	$(BIN)/python -m pip install --quiet -e ".[demo]" "playwright>=1.50"
	command -v chromium > /dev/null || $(BIN)/playwright install --with-deps chromium
	touch $@

test-browser: .venv/browser  ## the page of `lpa-cwm page` in a real browser
	$(BIN)/python -m pytest -m browser tests/browser

format: .venv/dev ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix . && $(BIN)/ruff format .

clean:           ## remove what the targets made
	rm -rf .venv demo site .pytest_cache .ruff_cache .hypothesis

.PHONY: help demo lint test test-slow test-browser fuzz docs format clean
