# To begin: `make demo` and `make test`. For daily work: `make render deploy`.

.DEFAULT_GOAL := help
.PHONY: help demo test setup plan render check deploy status logs stop examples dashboards docs pictures lint audit bench lab lab-down lab-test chaos clean

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
            $(shell $(name) -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null)))
BIN := .venv/bin
UV := $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python
KIT := $(BIN)/kit
# The tested release of torch. Without a GPU, the CPU build suffices, a tenth of the size.
TORCH := torch==2.13.0
TORCH_CPU := https://download.pytorch.org/whl/cpu
# A matching pair for tests of torchvision; PyPI has no torchvision for the CPU build above.
VISION := torch==2.15.0 torchvision==0.29.2
TENSORFLOW := tensorflow-cpu==2.21.0
FRAMEWORKS := accelerate==1.15.0 transformers==5.23.0 lightning==2.6.6 deepspeed==0.19.8
# Test processes. Three of them have a lab each and mostly wait, so that there may be more than cores.
WORKERS ?= 4
# Of the fault suite: the seed of its order and times, and the faults; empty: all of them.
SEED ?= 1
FAULTS ?=
# Additional arguments of a command, for example: make deploy ARGS="digits --detach"
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

test: setup .venv/.dev .tools/.vision .tools/.tensorflow ## run all tests; those of the lab only as root on Debian or Ubuntu
	@tests/docker-cli
	@$(BIN)/python -m compileall -q kit trainer tests # Otherwise each test process would compile.
	$(BIN)/pytest --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder $(ARGS)

setup: .venv/.kit .venv/.trainer ## install missing packages into .venv

plan: .venv/.kit ## show which host and GPU runs which job
	@$(KIT) plan $(ARGS)

render: .venv/.kit ## write compose/ from inventory.yaml and jobs/
	@$(KIT) render $(ARGS)

check: .venv/.kit ## fail if compose/ differs from inventory.yaml and jobs/
	@$(KIT) render --check $(ARGS)

deploy: setup ## start the jobs and follow them
	@$(KIT) deploy $(ARGS)

status: .venv/.kit ## show the deployed jobs
	@$(KIT) status $(ARGS)

logs: .venv/.kit ## print the logs of all hosts
	@$(KIT) logs $(ARGS)

stop: .venv/.kit ## end the jobs, after a last checkpoint
	@$(KIT) stop $(ARGS)

examples: .venv/.kit ## regenerate the examples in compose/, the schemas and the reference
	@for schema in inventory job server; do $(KIT) schema $$schema >kit/schema/$$schema.schema.json; done
	@$(KIT) render
	@for example in tests/examples/*/; do \
	    $(KIT) render -i $$example/inventory.yaml -o compose/$$(basename $$example) || exit; \
	done
	@$(BIN)/python -m docs.generate

dashboards: .venv/.dev ## write the templates of Grafana's dashboards, by its SDK
	@$(BIN)/python -m docs.generate.dashboards

docs: .venv/.docs ## build the documentation as a site, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "site/index.html"

pictures: setup .venv/.dev ## record the documentation's pictures from real runs
	@$(BIN)/python -m docs.generate.recordings
	@$(BIN)/python -m docs.generate.reports

lint: setup .venv/.dev ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

audit: setup .venv/.dev ## compare the installed packages with PyPI's advisories
	@$(BIN)/python .ci/audit $(ARGS)

bench: setup ## time plan and render, checkpoint stalls, training compared with others, serving
	@$(BIN)/python tests/bench_render.py
	@$(BIN)/python -m tests.bench_checkpoint
	@$(BIN)/python -m tests.bench_training $(ARGS)
	@$(BIN)/python -m tests.bench_metrics
	@$(BIN)/python -m tests.bench_serve

lab: ## start a real Swarm of three nodes on this machine, as root
	@PYTHON=$(PYTHON) tests/lab/lab make

lab-down: ## remove it; ARGS=--all with its caches
	@PYTHON=$(PYTHON) tests/lab/lab down $(ARGS)

lab-test: setup .venv/.dev .tools/.vision ## run only the lab's tests, as root
	@tests/docker-cli
	$(BIN)/pytest -m lab tests/lab $(ARGS)

chaos: setup .venv/.dev ## make faults during a training in a lab, as root; SEED=1 FAULTS=rank,power
	@tests/docker-cli
	@$(BIN)/python -m tests.lab.chaos --seed $(SEED) --faults "$(FAULTS)" $(ARGS)

clean: ## remove what setup installed
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
	@$(UV) --editable '.[data,digits,folder,serve,text]'
	@touch $@

.venv/.dev: .venv/.kit
	@$(UV) --group dev
	@touch $@

.tools/.vision: .venv/.kit
	@echo "installing torchvision and other frameworks for their tests (once; 5 GB where PyTorch's own index is out of reach)"
	@mkdir -p .tools
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .tools/vision
	@backend=; ! $(call reachable,$(TORCH_CPU)/) || backend="--torch-backend cpu"; \
	    $(BIN)/uv pip install --quiet --python .tools/vision/bin/python $$backend $(VISION) $(FRAMEWORKS) \
	    --editable '.[data,digits,folder,serve,text]' --group dev
	@touch $@

.tools/.tensorflow: .venv/.kit
	@echo "installing TensorFlow for its tests (once)"
	@mkdir -p .tools
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .tools/tensorflow
	@$(BIN)/uv pip install --quiet --compile-bytecode --python .tools/tensorflow/bin/python $(TENSORFLOW)
	@touch $@

.venv/.docs: .venv/.kit
	@$(UV) --group docs
	@touch $@
