# Hearth's commands. `make` alone lists them.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.ONESHELL:
.SHELLFLAGS := -eu -c
MAKEFLAGS += --no-print-directory

NODES ?= 8
PORT ?= 8000
PYTHON ?=

bin := .venv/bin
uv := tools/uv.sh
# What the linters read; a package joins once it exists.
packages := $(wildcard manage.py controlplane caches routing tests)

# One run of the tests starts hundreds of processes: what the first has compiled, the others read.
unexport PYTHONDONTWRITEBYTECODE

# All that lint checks but types.
define check_others
$(bin)/ruff check $(packages)
$(bin)/ruff format --check --quiet $(packages)
$(bin)/lint-imports --no-cache >.venv/lint-imports.log || { cat .venv/lint-imports.log; exit 1; }
tools/check_django.sh
endef

.PHONY: help run run-kube kube-packages test test-fast lint lock clean bench kube-binaries

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

run: .venv/.run ## start everything here and print one address (NODES=8 PORT=8000)
	@exec $(bin)/python manage.py run --port $(PORT) --nodes $(NODES)

run-kube: kube-packages .venv/.kube ## the same with three real Kubernetes nodes; Linux and root (PORT=8000)
	@export HEARTH_STATE_DIR="$${HEARTH_STATE_DIR:-$(CURDIR)/.run-kube}"
	exec $(bin)/python manage.py run --kubernetes --port $(PORT)

kube-packages:
	@tools/kube_packages.sh

# Tests of clusters wait more than they work: three workers for two cores. mypy keeps one core busy for long: it begins
# first, whatever else there is to prepare takes the other, and tests need not wait for it. Collecting once compiles
# every module, which each worker would do for itself.
test: WORKERS ?= 3
test: .venv ## lint and every test
	@nice -n 15 $(bin)/mypy $(packages) >.venv/mypy.log 2>&1 & types=$$!
	trap 'kill $$types 2>/dev/null || true' EXIT
	trap 'exit 1' INT TERM
	$(check_others)
	tools/chromium.sh
	tools/kube_packages.sh || [ -z "$${CI:-}" ]
	$(bin)/python -m controlplane.embedded.kube prepare
	$(bin)/pytest --collect-only -qq $(ARGS) >/dev/null 2>&1 || true
	failed=0
	$(bin)/pytest -n $(WORKERS) --dist loadgroup $(ARGS) || failed=$$?
	wait $$types || failed=$$?
	trap - EXIT
	cat .venv/mypy.log
	exit $$failed

test-fast: WORKERS ?= 2
test-fast: .venv ## domain, services, selectors and API, without whole fleets and sweeps
	@$(bin)/pytest -n $(WORKERS) --dist loadgroup -m "not bench and not thorough" \
		$(wildcard tests/domain tests/services tests/selectors tests/api) $(ARGS)

lint: .venv ## style, types, layers, migrations, openapi.yaml
	@{
	    $(check_others)
	} & others=$$!
	$(bin)/mypy $(packages) || { wait $$others || true; exit 1; }
	wait $$others

kube-binaries: .venv/.kube ## build Kubernetes for run-kube and the tests; five minutes, once for each version
	@$(bin)/python -m controlplane.embedded.kube binaries

bench: .venv ## measurements; slow, assert nothing about time
	@$(bin)/pytest -m bench -p no:randomly --timeout 0 $(if $(filter tests/%,$(ARGS)),,tests/bench) $(ARGS)

lock: .venv/.bootstrap ## recompile requirements/ from pyproject.toml
	@tools/lock.sh $(uv) $(ARGS)

clean: ## remove the environment, caches and everything `make run` stored
	@if [ -x $(bin)/python ] && [ -d .run ]; then $(bin)/python -m controlplane.embedded .run; fi
	if [ -x $(bin)/python ] && [ -d .run-kube ]; then
	    $(bin)/python -m controlplane.embedded .run-kube
	    $(bin)/python -m controlplane.embedded.kube clean .run-kube/kube
	fi
	rm -rf .venv .run .run-kube .mypy_cache .ruff_cache .pytest_cache .hypothesis staticfiles
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamps: the second call is instant, and a changed lock file installs again.
.venv: .venv/.dev ;

.venv/.bootstrap: requirements/bootstrap.txt tools/bootstrap.sh
	@tools/bootstrap.sh $(PYTHON)
	touch $@

.venv/.dev: .venv/.bootstrap requirements/dev.txt
	@$(uv) pip sync --quiet --require-hashes requirements/dev.txt
	touch $@ .venv/.run .venv/.kube

# Adds, never removes: an environment that has the test tools keeps them.
.venv/.run: .venv/.bootstrap requirements/embedded.txt
	@$(uv) pip install --quiet --require-hashes --requirement requirements/embedded.txt
	touch $@

.venv/.kube: .venv/.bootstrap requirements/kube.txt
	@$(uv) pip install --quiet --require-hashes --requirement requirements/kube.txt
	touch $@ .venv/.run
