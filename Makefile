# Two commands: `make train` shows a run from nothing to generated text, `make test` runs every test.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := pyproject.toml constraints.txt requirements/core.txt $(wildcard plugins/*/pyproject.toml)

.PHONY: setup train test generated docs clean

setup: $(VENV)/.installed

train: setup
	$(BIN)/neox data prepare stdlib --out data/stdlib
	$(BIN)/neox train configs/quickstart.yml

test: $(BIN)/tox  # lint and light while the libraries of core are installed
	@rm -f .tox/failures.txt
	@df -Pk . | awk 'NR == 2 && $$4 < 5242880 {print "make test needs 5 GiB of free disk, and here are " int($$4 / 1048576); exit 1}'
	$(BIN)/tox run-parallel --parallel all --parallel-live || { cat .tox/failures.txt 2>/dev/null; exit 1; }

generated: setup  # what is written from the code: after a new key, hook or component
	$(BIN)/python -m neox_reference.packages
	$(BIN)/neox config docs --out docs/configuration.md
	$(BIN)/python -m neox_reference.hooks > docs/hooks.md
	$(BIN)/python tests/contract/test_surface.py  # with a line under 'The plugin API' in CHANGELOG.md

docs: setup  # the site, at http://localhost:8000
	$(BIN)/python -m pip install -q -c constraints.txt -r requirements/docs.txt
	rm -rf .site
	$(BIN)/python -m neox_reference.site .site
	$(BIN)/zensical build --strict --config-file .site/zensical.toml
	$(BIN)/zensical serve --config-file .site/zensical.toml

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(BIN)/tox: | $(BIN)/python
	$(BIN)/python -m pip install -q 'tox>=4.20'

$(VENV)/.installed: $(SOURCES) | $(BIN)/python
	@echo "Installing torch, DeepSpeed and neox into $(VENV) (a minute or two, once)"
	$(BIN)/python -m pip install -q -c constraints.txt -r requirements/core.txt
	$(BIN)/python requirements/install_here.py
	@touch $@

clean:  # what is made again by the others; never a run
	rm -rf $(VENV) .tox .site
