# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet -c constraints.txt
EXTRAS := data,demo,flow,ray,report,rerun,sim,torchmetrics
TEST_TOOLS := "beartype>=0.22" "hypothesis>=6.100" "pytest>=8"
CORE_TESTS := $(addprefix tests/test_,$(addsuffix .py,apa decode features geometry learned_world lpa masks \
	metrics opt_cwm predictions responses temporal toy tracker types video world_models))
.DEFAULT_GOAL := help

help:            ## list the targets
	@grep -E '^[a-z-]+: .*##|^[a-z-]+:  *##' $(MAKEFILE_LIST) | sed 's/:.*## */\t/' | expand -t 16

.venv/core: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(PIP) torch
	$(PIP) -e .
	touch $@

.venv/docs: .venv/core
	$(PIP) --group docs
	touch $@

.venv/dev: .venv/core
	$(PIP) -e ".[$(EXTRAS)]" --group dev
	touch $@

demo: .venv/core  ## track points through the bundled clip, offline
	$(BIN)/lpa-cwm track --grid 5 --out demo/overlay.mp4 --save demo/tracks.csv

lint: .venv/dev   ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

# One thread for each of the two workers: more would wait for each other. Bytecode is written even where the machine
# says otherwise, so that tests are not compiled anew in every run. A file stays with one worker, and so do its fixtures;
# the longest files begin (tests/conftest.py), which xdist would reorder by the number of tests.
test: .venv/dev   ## the default suite
	PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

# Environments of their own. `uv` resolves every direct dependency of the core to its lowest declared version; the
# newest are what pip takes by itself. Both need the GPU builds of torch where the package index has no others.
build/lowest/done: pyproject.toml
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/python -m pip install --quiet uv
	build/lowest/bin/uv pip install --quiet --python build/lowest/bin/python --resolution lowest-direct -e . $(TEST_TOOLS)
	touch $@

build/newest/done: pyproject.toml
	$(PYTHON) -m venv build/newest
	build/newest/bin/python -m pip install --quiet -e . $(TEST_TOOLS)
	touch $@

test-lowest: build/lowest/done  ## the tests of the core with the lowest declared versions
	OMP_NUM_THREADS=1 build/lowest/bin/python -m pytest $(CORE_TESTS)

test-newest: build/newest/done  ## the tests of the core with the newest versions
	OMP_NUM_THREADS=1 build/newest/bin/python -m pytest $(CORE_TESTS)

SHAPES := --jaxtyping-packages=lpa_cwm,beartype.beartype

test-shapes: .venv/dev  ## the default suite with the shapes and types of all arguments checked at every call
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(SHAPES)

test-slow: .venv/dev  ## checks that take minutes
	$(BIN)/python -m pytest -m slow $(SHAPES)

fuzz: .venv/dev   ## damaged files for all readers, for some minutes
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/fuzz.py --inputs 15000

kills: .venv/dev  ## kill every command that resumes, and compare what it writes
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/kills.py

full-disk: .venv/dev  ## every command on a disk that becomes full; needs root
	OMP_NUM_THREADS=1 $(BIN)/python tests/fuzz/full_disk.py

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
	rm -rf .venv build demo site .pytest_cache .ruff_cache .hypothesis

.PHONY: help demo lint test test-lowest test-newest test-shapes test-slow test-browser fuzz kills full-disk docs format clean
