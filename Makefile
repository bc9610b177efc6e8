# Everything a fresh machine with Python 3.11+, pip and make needs. `make help` lists the targets.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo test coverage mutants test-slow test-gpu lint format docs bench scale dist notebooks constraints clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "tacit: installing the pinned packages into $(VENV) (once; a few minutes)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP) ## the main job on the embedded data
	@$(BIN)/python -m examples.demo

test: $(STAMP) ## the test suite (under 10 minutes on 2 cores: two processes of one thread each)
	@OMP_NUM_THREADS=1 $(PYTEST) -m "not slow and not gpu" -n 2 --dist worksteal --durations=15 $(ARGS)

coverage: $(STAMP) ## the test suite with line coverage, which takes longer
	@$(MAKE) test ARGS="--cov --cov-report=term $(ARGS)"

test-slow: $(STAMP) ## minutes-long tests: arbitrary precision, many kill points, full trainings (docs/maintain/slow-tests.md)
	@$(BIN)/python -m tools.slow --all $(ARGS)

mutants: $(STAMP) ## wrong versions of the source that a test must notice; can be stopped and resumed (docs/maintain/mutants.md)
	@$(BIN)/python -m tools.mutate run $(ARGS)

test-gpu: $(STAMP) ## tests that need a CUDA device
	@$(PYTEST) -m gpu $(ARGS)

lint: $(STAMP) ## ruff (lint and format check) and mypy
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(STAMP) ## rewrite the code in the house format
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(STAMP) ## build the documentation into docs/_build/html
	@$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(STAMP) ## measured ratios against the peers (CPU)
	@$(BIN)/python -m benchmarks $(ARGS)

scale: $(STAMP) ## many ranks against one: sums, noise bits, memory, kills, resume (minutes)
	@$(BIN)/python -m benchmarks scale $(ARGS)

dist: $(STAMP) ## build wheel and sdist, check them, and try the wheel in a fresh environment with the base dependencies
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	@rm -rf dist && $(BIN)/python -m build --outdir dist . && $(BIN)/twine check --strict dist/*
	@$(PYTHON) tools/try_wheel.py dist/*.whl

notebooks: $(STAMP) ## run the notebooks in examples/ and save what they show
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	@$(BIN)/python tools/notebooks.py

constraints: $(STAMP) ## write constraints.txt anew from what is installed
	@(echo "# Exact versions that make demo, make test and CI install. To renew: make constraints."; \
	  $(BIN)/python -m pip freeze --exclude-editable | grep -v -i '^tacit' | sed 's/+cpu//' | sort -f) > constraints.new && mv constraints.new constraints.txt

clean: ## remove the environment and everything built
	rm -rf $(VENV) docs/_build .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage
