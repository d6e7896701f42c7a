# Two commands for a newcomer: `make demo` and `make test`. The daily one: `make render deploy`.

.DEFAULT_GOAL := help
.PHONY: help demo test setup plan render check deploy status logs stop examples docs pictures lint bench lab lab-down lab-test clean

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
            $(shell $(name) -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null)))
BIN := .venv/bin
UV := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python
KIT := $(BIN)/kit
# The release that the trainer is tested with. Without a GPU the CPU build does, a tenth of the size.
TORCH := torch==2.13.0
TORCH_CPU := https://download.pytorch.org/whl/cpu
# A pair for the tests of what needs torchvision, from PyPI too; there the CPU build above has none.
VISION := torch==2.15.0 torchvision==0.29.2
# Processes that share the tests. Three of them have a lab each, and mostly wait: more than the cores.
WORKERS ?= 5
# What `make deploy` and its kin are given besides, as in: make deploy ARGS="digits --detach"
ARGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## train the example cluster on this machine, in about a minute
	@$(KIT) plan
	@$(KIT) render
	@$(KIT) deploy digits --engine local --fresh
	@echo
	@echo "That was the cluster of inventory.yaml, on this machine alone. What to do next:"
	@echo "  make status                       see the job and its checkpoint again"
	@echo "  edit inventory.yaml               write your own hosts, and engine: swarm or compose"
	@echo "  make plan render && git diff      read what the hosts would get"
	@echo "  $(KIT) init ../my-cluster   start a repository of your own"

test: setup .venv/.dev .tools/.vision ## run every test; the lab's where this is root on Debian or Ubuntu
	@tests/docker-cli
	@$(BIN)/python -m compileall -q kit trainer tests # The processes of tests need not do it each.
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder $(ARGS)

setup: .venv/.kit .venv/.trainer ## install what is missing, into .venv

plan: .venv/.kit ## show who runs what
	@$(KIT) plan $(ARGS)

render: .venv/.kit ## write compose/ from inventory.yaml and jobs/
	@$(KIT) render $(ARGS)

check: .venv/.kit ## fail where compose/ is not what inventory.yaml and jobs/ say
	@$(KIT) render --check $(ARGS)

deploy: setup ## start the jobs and follow them
	@$(KIT) deploy $(ARGS)

status: .venv/.kit ## show the jobs that were deployed
	@$(KIT) status $(ARGS)

logs: .venv/.kit ## print what the hosts have printed
	@$(KIT) logs $(ARGS)

stop: .venv/.kit ## end the jobs, after a last checkpoint
	@$(KIT) stop $(ARGS)

examples: .venv/.kit ## render the examples in compose/, the schemas and the reference anew
	@for schema in inventory job server; do $(KIT) schema $$schema >kit/schema/$$schema.schema.json; done
	@$(KIT) render
	@for example in tests/examples/*/; do \
	    $(KIT) render -i $$example/inventory.yaml -o compose/$$(basename $$example) || exit; \
	done
	@$(BIN)/python -m docs.generate

docs: .venv/.docs ## build the documentation as a site, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

pictures: setup ## record the documentation's pictures of a terminal, from real runs
	@$(BIN)/python -m docs.generate.recordings

lint: setup .venv/.dev ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup ## time plan and render, the stall of a checkpoint, training beside others, serving
	@$(BIN)/python tests/bench_render.py
	@$(BIN)/python -m tests.bench_checkpoint
	@$(BIN)/python -m tests.bench_training $(ARGS)
	@$(BIN)/python -m tests.bench_serve

lab: ## start a real Swarm of three nodes on this machine, as root
	@PYTHON=$(PYTHON) tests/lab/lab make

lab-down: ## remove it; ARGS=--all with its caches
	@PYTHON=$(PYTHON) tests/lab/lab down $(ARGS)

lab-test: setup .venv/.dev .tools/.vision ## run the lab's tests alone, as root
	@tests/docker-cli
	$(BIN)/pytest -m lab tests/lab $(ARGS)

clean: ## remove what setup has installed
	rm -rf .venv .tools site .mypy_cache .pytest_cache .ruff_cache

reachable = $(BIN)/python -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' $(1) 2>/dev/null

.venv/.python:
	@test -n "$(PYTHON)" || { echo "kit needs Python 3.11 or later: none was found. Name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || .ci/install-venv $(PYTHON)
	@echo "installing kit into .venv"
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check uv
	@touch $@

.venv/.kit: .venv/.python pyproject.toml
	@$(UV) --editable .
	@touch $@

.venv/.trainer: .venv/.kit
	@$(BIN)/python -c 'import torch' 2>/dev/null || { \
	    echo "installing PyTorch (once; minutes on a slow line)"; \
	    index=; \
	    command -v nvidia-smi >/dev/null || ! $(call reachable,$(TORCH_CPU)/) || index="--extra-index-url $(TORCH_CPU)"; \
	    $(BIN)/pip install --quiet --disable-pip-version-check $$index $(TORCH); \
	}
	@$(UV) --editable '.[digits,folder,metrics,serve]'
	@touch $@

.venv/.dev: .venv/.kit
	@$(UV) --group dev
	@touch $@

.tools/.vision: .venv/.kit
	@echo "installing torchvision for its tests (once; 5 GB where PyTorch's own index is out of reach)"
	@mkdir -p .tools
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .tools/vision
	@backend=; ! $(call reachable,$(TORCH_CPU)/) || backend="--torch-backend cpu"; \
	    $(BIN)/uv pip install --quiet --python .tools/vision/bin/python $$backend $(VISION) \
	    --editable '.[digits,folder,metrics,serve]' --group dev
	@touch $@

.venv/.docs: .venv/.kit
	@$(UV) --group docs
	@touch $@
