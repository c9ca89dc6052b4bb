# Every target makes .venv and installs what it needs into it first, once; a change of pyproject.toml installs again.
#   PYTHON=...   the interpreter (default: the newest of python3.14 .. python3.11, python3)
#   ARGS=...     passed on, e.g. make quickstart ARGS="--train.steps 100", make test ARGS="-k yarn"
PYTHON ?=
ARGS ?=
TORCH ?= torch==2.13.0
export PYTHON

python := .venv/bin/python
# The checkout's own place is part of the stamps: a copied checkout would otherwise run the original's code.
here := $(shell pwd | cksum | cut -d ' ' -f 1)
workers := -n auto --maxprocesses 8
run := .venv/.run-$(here)
hf := .venv/.hf-$(here)
dev := .venv/.dev-$(here)
parity := .venv/.parity-$(here)
tpu := .venv-tpu/.tpu-$(here)

.PHONY: help quickstart pretrained train test slow lint bench parity tpu clean
.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

quickstart: $(run) ## train a small model and sweep the methods over longer contexts
	$(python) scripts/extrapolate.py configs/quickstart.toml $(ARGS)

pretrained: $(hf) ## sweep a checkpoint: make pretrained ARGS="--checkpoint DIR --text FILE"
	$(python) scripts/extrapolate.py $(ARGS)

train: $(run) ## train in stages: make train ARGS="configs/train/staged.toml"
	$(python) scripts/train.py $(or $(ARGS),configs/train/quickstart.toml)

test: $(dev) ## the tests that run in moments
	$(python) -m pytest $(workers) $(ARGS)

slow: $(dev) ## the tests left out of `make test`
	$(python) -m pytest -m slow $(ARGS)

lint: $(dev) ## formatting, lint and types
	$(python) -m ruff format --check .
	$(python) -m ruff check .
	$(python) -m mypy $(ARGS)

bench: $(run) ## speed and memory on this machine
	$(python) scripts/bench.py $(ARGS)

tpu: $(tpu) ## compile a run for a TPU slice: make tpu ARGS="CONFIG.toml --topology v5e:2x2"
	.venv-tpu/bin/python scripts/compile_tpu.py $(or $(ARGS),configs/train/quickstart.toml --topology v5e:2x2)

parity: $(parity) ## compare with transformers and torch (a large download)
	$(python) -m pytest $(workers) -m "" tests/parity $(ARGS)

# In an environment of its own: the TPU compiler comes with a runtime that other programs would try to use.
$(tpu): pyproject.toml
	@VENV=.venv-tpu sh scripts/environment.sh train,report,hf,tpu
	@touch $@

clean: ## remove .venv, caches and build outputs; results in runs/ stay
	rm -rf .venv .venv-tpu dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find rope_jax scripts tests -name __pycache__ -prune -exec rm -rf {} +

$(run): pyproject.toml
	@sh scripts/environment.sh train,report
	@touch $@

$(hf): pyproject.toml
	@sh scripts/environment.sh train,report,hf
	@touch $@

$(dev): pyproject.toml
	@sh scripts/environment.sh train,report,hf,ray,dev
	@touch $@

# torch first and by pip, at the version the parity numbers were made with: left open it may bring gigabytes of CUDA.
$(parity): pyproject.toml
	@sh scripts/environment.sh train,report,hf,ray,dev pip
	$(python) -m pip install $(TORCH)
	@sh scripts/environment.sh train,report,hf,ray,dev,parity
	@touch $@
