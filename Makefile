# Everything is set up in .venv; a fresh machine needs python3 (3.11 is tested) with its venv module, and nothing else.
PYTHON ?= python3
VENV ?= .venv
OLDEST ?= .venv-oldest
BIN = $(VENV)/bin

.PHONY: demo test test-oldest lint bench golden clean

demo: $(VENV)/ready
	$(BIN)/python examples/demo.py

test: $(VENV)/ready
	$(BIN)/python -m pytest

# The built scripts, and the modules that they import, with the oldest torch that they run on.
test-oldest: $(OLDEST)/ready
	$(OLDEST)/bin/python -m pytest -m "not thorough" tests/test_runs*.py tests/test_support*.py

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/ready
	$(BIN)/python benchmarks/apply.py
	$(BIN)/python benchmarks/engine.py

# What the series do to the scripts, for review: renew these after a change of patches/ or upstream/, and read their own diff.
golden: $(VENV)/ready
	folder=$$(mktemp -d) && for series in guide standard; do \
	    $(BIN)/python -m patcher apply --series $$series --out $$folder/$$series/build > $$folder/log && \
	    $(BIN)/python -m patcher diff --series $$series --out $$folder/$$series/build \
	        | sed -e '/^--- .dev.null/,$$d' -e 's/build [0-9a-f]*: edit/build ID: edit/' \
	        > tests/golden/$$series.diff || exit 1; \
	done && rm -r $$folder

# pip never replaces a pinned torch: the pins stand in setup.cfg, and a change there makes this run again.
$(VENV)/ready: EXTRAS = dev
$(OLDEST)/ready: EXTRAS = oldest,test
$(VENV)/ready $(OLDEST)/ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]"
	touch $@

clean:
	rm -rf $(VENV) $(OLDEST) .venv-bench build demo dist *.egg-info .pytest_cache .hypothesis .ruff_cache
