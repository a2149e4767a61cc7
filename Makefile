# Everything is set up in .venv; a fresh machine needs python3 (3.11 is tested) with its venv module, and nothing else.
PYTHON ?= python3
VENV ?= .venv
OLDEST ?= .venv-oldest
BIN = $(VENV)/bin

.PHONY: demo test test-thorough test-oldest lint bench golden readme image-test clean

demo: $(VENV)/ready
	$(BIN)/python examples/demo.py

# Three at a time: most runs wait for one another, or for a signal, rather than compute.
PYTEST = $(BIN)/python -m pytest -n 3 --dist loadfile

test: $(VENV)/ready
	$(PYTEST) -m "not thorough"

# With the many cases of one kind as well.
test-thorough: $(VENV)/ready
	$(PYTEST)

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

# What the series do to the scripts, for review: renew it after a change of patches/ or upstream/, and read its own diff.
golden: $(VENV)/ready
	$(BIN)/python tests/goldens.py

# The table of patches and the examples in README.md and docs/.
readme: $(VENV)/ready
	$(BIN)/python tests/pages.py

# pip never replaces a pinned torch: the pins stand in setup.cfg, and a change there makes this run again.
$(VENV)/ready: EXTRAS = dev
$(OLDEST)/ready: EXTRAS = oldest,test
$(VENV)/ready $(OLDEST)/ready: setup.cfg pyproject.toml
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --editable ".[$(EXTRAS)]"
	touch $@

# Builds the image and runs what it runs by default. IMAGE_ARGS="--build-arg BASE=..." builds a variant; DOCKER=podman.
DOCKER ?= docker
image-test:
	$(DOCKER) build --tag patcher:test --build-arg REVISION=$$(git rev-parse HEAD) $(IMAGE_ARGS) .
	$(DOCKER) run --rm --network none --hostname localhost --shm-size 1g patcher:test

clean:
	rm -rf $(VENV) $(OLDEST) .venv-bench build demo dist *.egg-info .pytest_cache .hypothesis .ruff_cache
