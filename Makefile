# To begin: `make demo` and `make test`. For daily work: `make render deploy`.

.DEFAULT_GOAL := help
.PHONY: help demo test test-lab test-kubernetes test-long test-versions test-times update setup plan render check deploy status logs stop \
    examples dashboards docs pictures lint audit bench bench-render bench-defaults gpu lab lab-down chaos clean

# If it is set, each of some thousand processes compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= $(firstword $(foreach name,python3 python3.14 python3.13 python3.12 python3.11,\
            $(shell $(name) -c 'import sys; sys.version_info >= (3, 11) and print(sys.executable)' 2>/dev/null)))
BIN := .venv/bin
# The locks are constraints with hashes, and name no index.
UV := $(BIN)/uv pip install --quiet --compile-bytecode --build-constraint locks/kit.txt
INTO_KIT := $(UV) --python $(BIN)/python --constraint locks/kit.txt
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps
KIT := $(BIN)/kit
# Where PyTorch's own index is within reach, its CPU build suffices without a GPU: a tenth of the size.
TORCH_CPU := https://download.pytorch.org/whl/cpu
TRAINER := '.[data,digits,folder,notify,serve,text]'
# Followed by the number of test processes. Those of the lab mostly wait, so that there are more of them than cores.
PYTEST = $(BIN)/pytest --dist loadscope --no-loadscope-reorder --numprocesses
# Prints the processor time of all that a command starts, beside its budget in minutes.
BUDGET = $(BIN)/python -m tests.budget --name $@ --minutes
# The fault suite: the seed of its order and times, and its faults; empty: all of them.
SEED ?= 1
FAULTS ?=
# Additional arguments of a command, for example: make deploy ARGS="digits --detach"
ARGS ?=

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: setup ## train the example cluster on this machine, in about a minute
	@$(KIT) plan
	@$(KIT) render
	@$(KIT) deploy digits --engine local --fresh
	@echo
	@echo "That was the cluster of inventory.yaml, on this machine alone. What to do next:"
	@echo "  make status                       see the job and its checkpoint again"
	@echo "  edit inventory.yaml               write your own hosts, and engine: swarm or compose"
	@echo "  make plan render && git diff      read what the hosts would get"
	@echo '  export PATH="$$PWD/$(BIN):$$PATH"    have kit at hand in this shell, then:'
	@echo "  kit init ../my-cluster            start a repository of your own"

test: setup .venv/.dev .tools/.docker ## prove the product, in some ten minutes; as root on Debian or Ubuntu with a real Swarm
	$(BUDGET) 20 -- $(PYTEST) 3 -m "not lab and not long and not kubernetes" $(ARGS)

# Their labs have other numbers than that of `make test`, which may run at the same time.
test-lab: export KIT_TEST_LABS ?= 1
test-lab: setup .venv/.dev .tools/.docker ## run the other tests on real Swarms and Compose hosts, as root
	$(BUDGET) 25 -- $(PYTEST) 4 -m "lab and not long" tests/lab $(ARGS)

test-kubernetes: setup .venv/.dev ## run a job's story on the cluster that KUBECONFIG names
	@test -n "$(KUBECONFIG)" || { echo "KUBECONFIG names no cluster" >&2; exit 2; }
	$(BUDGET) 5 -- $(PYTEST) 1 -m kubernetes tests/kubernetes $(ARGS)

test-long: setup .venv/.dev .tools/.docker .tools/.vision .tools/.tensorflow .tools/.ansible .tools/.arm64 ## run frameworks, chaos, soaks; before a release
	$(BUDGET) 90 -- $(PYTEST) 3 -m long --note "$(ARGS)" $(ARGS)

test-versions: .venv/.kit ## run the pure tests with the lowest and the newest versions that pyproject.toml admits
	@$(BIN)/python -m tests.versions $(BIN)/uv $(ARGS)

test-times: .venv/.dev ## print the test files with the most processor time, of their last runs
	@$(BIN)/python -m tests.times

update: .venv/.python ## renew the locked versions
	@$(BIN)/python .ci/lock $(BIN)/uv --upgrade

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
	@$(BIN)/python -m tests.examples
	@$(BIN)/python -m docs.generate

dashboards: .venv/.dev ## write the templates of Grafana's dashboards, by its SDK
	@$(BIN)/python -m docs.generate.dashboards

docs: .venv/.docs ## build the documentation as a site, into site/, and test its search
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@$(BIN)/python -m tests.searches site
	@echo "site/index.html"

pictures: setup .venv/.dev ## record the documentation's pictures from real runs
	@$(BIN)/python -m docs.generate.recordings
	@$(BIN)/python -m docs.generate.story
	@$(BIN)/python -m docs.generate.reports

lint: setup .venv/.dev ## check format, style, types, prose, and the rendered files
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest --quiet tests/test_prose.py
	.ci/lint-rendered

audit: setup .venv/.dev ## compare the installed packages with PyPI's advisories
	@$(BIN)/python .ci/audit $(ARGS)

bench-render: .venv/.kit ## time plan, render and split for 1,000 and 4,000 hosts
	@$(BIN)/python tests/bench_render.py

bench-defaults: setup ## train by jobs without settings, and by plain loops: what each learns, in an hour
	@$(BIN)/python -m tests.bench_defaults $(ARGS)

bench: setup bench-render ## time plan and render, checkpoint stalls, training compared with others, serving
	@$(BIN)/python -m tests.bench_checkpoint
	@$(BIN)/python -m tests.bench_training $(ARGS)
	@$(BIN)/python -m tests.bench_metrics
	@$(BIN)/python -m tests.bench_serve

gpu: ## check and measure the trainer on this machine's GPU, in under nine minutes; needs Python with torch alone
	@$(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m tests.gpu --out .tools/gpu $(ARGS)

lab: ## start a real Swarm of three nodes on this machine, as root
	@PYTHON=$(PYTHON) tests/lab/lab make

lab-down: ## remove it; ARGS=--all with its caches
	@PYTHON=$(PYTHON) tests/lab/lab down $(ARGS)

chaos: setup .venv/.dev .tools/.docker ## make faults during a training in a lab, as root; SEED=1 FAULTS=rank,power
	@$(BIN)/python -m tests.lab.chaos --seed $(SEED) --faults "$(FAULTS)" $(ARGS)

clean: ## remove what setup installed
	rm -rf .venv .tools site .mypy_cache .pytest_cache .ruff_cache

reachable = $(BIN)/python -c 'import sys, urllib.request; urllib.request.urlopen(sys.argv[1], timeout=5)' $(1) 2>/dev/null

.venv/.python: locks/uv.txt
	@test -n "$(PYTHON)" || { echo "kit needs Python 3.11 or later: none was found. Name one: make PYTHON=/path/to/python3" >&2; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || .ci/install-venv $(PYTHON)
	@echo "installing kit into .venv"
	@$(PYTHON) -m venv .venv
	@$(PIP) -r locks/uv.txt
	@touch $@

.venv/.kit: .venv/.python pyproject.toml locks/kit.txt
	@$(INTO_KIT) --editable .
	@touch $@

.venv/.trainer: .venv/.kit locks/torch-cpu.txt
	@echo "installing PyTorch (once; minutes on a slow line)"
	@command -v nvidia-smi >/dev/null || { \
	    index=; ! $(call reachable,$(TORCH_CPU)/) || index="--extra-index-url $(TORCH_CPU)"; \
	    $(PIP) $$index -r locks/torch-cpu.txt 2>/dev/null; \
	} || echo "PyTorch's build for CPUs is out of reach: installing the one for CUDA, of 3 GB"
	@$(INTO_KIT) --group torch --editable $(TRAINER)
	@touch $@

.venv/.dev: .venv/.kit
	@$(INTO_KIT) --group dev
	@touch $@

.venv/.docs: .venv/.kit
	@$(INTO_KIT) --group docs
	@touch $@

.tools/.docker: tests/docker-cli
	@tests/docker-cli
	@mkdir -p .tools
	@touch $@

.tools/.arm64: .venv/.kit tests/arm64
	@echo "fetching an emulator, Python and PyTorch for arm64 for their test (once; 1 GB)"
	@tests/arm64
	@touch $@

.tools/.vision: .venv/.kit locks/frameworks.txt
	@echo "installing torchvision and other frameworks for their tests (once; 5 GB)"
	@mkdir -p .tools
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .tools/vision
	@$(UV) --python .tools/vision/bin/python --constraint locks/frameworks.txt --group frameworks --group dev --editable $(TRAINER)
	@touch $@

.tools/.ansible: .venv/.kit locks/ansible.txt
	@echo "installing Ansible for its tests (once)"
	@mkdir -p .tools
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .tools/ansible
	@$(UV) --python .tools/ansible/bin/python --constraint locks/ansible.txt --group ansible
	@touch $@

.tools/.tensorflow: .venv/.kit locks/tensorflow.txt
	@echo "installing TensorFlow for its tests (once)"
	@mkdir -p .tools
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python .tools/tensorflow
	@$(UV) --python .tools/tensorflow/bin/python --constraint locks/tensorflow.txt --group tensorflow
	@touch $@
