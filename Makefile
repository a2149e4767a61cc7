# Everything is set up in .venv; a fresh machine needs python3 (3.11 is tested) with its venv module, and nothing else.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: demo test lint bench clean

demo: $(VENV)/ready
	$(BIN)/python examples/demo.py

test: $(VENV)/ready
	$(BIN)/python -m pytest

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

bench: $(VENV)/ready
	$(BIN)/python benchmarks/apply.py

# pip never replaces a pinned torch: the pins stand in setup.cfg, and a change there makes this run again.
$(VENV)/ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) build demo dist *.egg-info .pytest_cache .hypothesis .ruff_cache
