# Every word makes .venv itself if it is missing, from nothing but python3 >= 3.11, and reuses it afterwards.
# Another interpreter: make train PYTHON=python3.12

PYTHON ?= python3
RUN := .venv/bin/python -m
INSTALLED := .venv/.installed
ANOTHER = Name another: make $(or $(MAKECMDGOALS),install) PYTHON=python3.12
SOURCES := zmqrl tests examples benchmarks launch

# Only .venv counts, whatever environment is active here.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_VIRTUALENV

.DEFAULT_GOAL := help
.PHONY: help install train test test-slow check format bench bench-peers docs clean
.DELETE_ON_ERROR:

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*##  *\(.*\)/make \1|\2/p' Makefile | awk -F '|' '{ printf "%-16s %s\n", $$1, $$2 }'

install: $(INSTALLED)  ## make .venv; every other word does it by itself

$(INSTALLED): pyproject.toml constraints.txt
	@command -v '$(PYTHON)' > /dev/null || { echo "There is no $(PYTHON) here, and zmqrl needs Python 3.11 or newer. $(ANOTHER)"; exit 1; } >&2
	@'$(PYTHON)' -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "zmqrl needs Python 3.11 or newer, and $(PYTHON) is $$('$(PYTHON)' --version 2>&1). $(ANOTHER)"; exit 1; } >&2
	@'$(PYTHON)' -c 'import ensurepip, venv' || { echo "$(PYTHON) cannot make environments: its venv module is missing (Debian, Ubuntu: apt install python3-venv). $(ANOTHER)"; exit 1; } >&2
	@echo 'Installing into .venv: once, and as long as it takes to download torch.'
	'$(PYTHON)' -m venv .venv
	$(RUN) pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

train: $(INSTALLED)  ## train PPO on CartPole-v1 with two actors until the mean return is 475
	$(RUN) zmqrl train --env CartPole-v1 --num-actors 2 --stop-at-return 475 --seed 1

test: $(INSTALLED)  ## the tests, without the learning runs
	$(RUN) pytest

test-slow: $(INSTALLED)  ## the learning runs
	$(RUN) pytest -m slow

check: $(INSTALLED)  ## style, imports, types and generated documents
	$(RUN) ruff format --check $(wildcard $(SOURCES))
	$(RUN) ruff check $(wildcard $(SOURCES))
	$(RUN) mypy

format: $(INSTALLED)  ## lay out the code, and mend what can be mended
	$(RUN) ruff format $(wildcard $(SOURCES))
	$(RUN) ruff check --fix $(wildcard $(SOURCES))

bench: $(INSTALLED)  ## the benchmarks that need nothing else, as JSON lines
	$(RUN) benchmarks.startup
	$(RUN) benchmarks.wire
	$(RUN) benchmarks.pipeline

bench-peers: $(INSTALLED)  ## against Stable-Baselines3: SB3_PYTHON=its interpreter
	$(RUN) benchmarks.against_sb3 --sb3-python '$(or $(SB3_PYTHON),$(error SB3_PYTHON=... names a Python with stable-baselines3; see docs/benchmarks.md))'

docs: $(INSTALLED)  ## write docs/configuration.md anew from the classes of options
	$(RUN) zmqrl.cli.options > docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md

clean:  ## remove .venv, caches and build products; runs/ stays
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find $(wildcard $(SOURCES)) -name __pycache__ -type d -prune -exec rm -rf {} +
