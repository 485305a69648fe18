# `make demo` and `make test` require only python3; both are incremental.
PYTHON ?= python3

# A non-default interpreter has a separate venv, so that both stay usable.
ifeq ($(origin PYTHON),file)
VENV := .venv
else
VENV := .venv-$(shell $(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')
endif
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
RUN ?= runs/demo

.PHONY: demo test lint test-fast test-slow benchmark docs clean

demo: $(VENV)/.installed
	$(BIN)/lopt meta-train demo --run-dir $(RUN)
	$(BIN)/lopt evaluate $(RUN) general-1 --suite quick

test: lint test-fast

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

test-fast: $(VENV)/.installed-dev
	$(BIN)/pytest -n 2 --dist loadfile

test-slow: $(VENV)/.installed-dev
	$(BIN)/pytest -m slow

benchmark: $(VENV)/.installed
	$(BIN)/python -m benchmarks.overhead

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir site
	@echo 'Open site/index.html'

$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "lopt needs Python 3.11 or newer, %s is %d.%d: try make PYTHON=python3.11" % (sys.executable, *sys.version_info[:2]))'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.venv pyproject.toml constraints.txt
	@echo 'Installing lopt into $(VENV) (a minute or two the first time)'
	@$(PIP) --editable '.[train]'
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo 'Installing the developer tools into $(VENV)'
	@$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	@echo 'Installing MkDocs into $(VENV)'
	@$(PIP) --editable '.[docs]'
	@touch $@

clean:
	rm -rf site .venv .venv-* .pytest_cache .ruff_cache .import_linter_cache
