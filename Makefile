# Every target makes the environment that it needs; torch comes first and from the pin, so that pip finds
# the CPU build and never a CUDA one. `make demo` installs what a user has, the others what a developer has.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
HOUSE  := ../shared/tools/house
export HF_HUB_OFFLINE ?= 1
export TOKENIZERS_PARALLELISM ?= false

.PHONY: demo test check house pytest browser nightly bench soak fuzz suites docs clean

demo: $(VENV)/.user
	$(BIN)/steelyard demo

test: check house pytest

check: $(VENV)/.developer
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

house:
	@if [ -x $(HOUSE) ]; then $(HOUSE); fi

pytest: $(VENV)/.developer
	$(BIN)/pytest --numprocesses auto --maxprocesses 4

# What the check of the report in a browser needs, if it can be had; without it that test says why it is skipped.
browser:
	@command -v chromium > /dev/null || echo "no chromium here: install your system's package"
	@npm install --prefix tests/report --no-audit --no-fund --no-package-lock --silent || echo "no axe-core here"

# Every study at its small size, and the tests that start servers. A study that fails does not stop the others; what is
# done stays in runs/nightly and is not done again.
nightly: $(VENV)/.developer
	$(PIP) --editable '.[scale]'
	STEELYARD_NIGHTLY=1 $(BIN)/pytest -q tests/studies
	@failed=""; for name in $$($(BIN)/steelyard study --names); do echo "== $$name"; \
	  $(BIN)/steelyard study $$name --small --out runs/nightly/$$name || failed="$$failed $$name"; done; \
	  test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

bench: $(VENV)/.developer
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# Long tests: a thousand random kills, and several processes in fours.
soak: $(VENV)/.developer
	$(BIN)/python tests/soak/kills.py --kills 1000
	STEELYARD_PROCESSES=4 $(BIN)/pytest tests/training/test_several.py

# A hundred thousand odd inputs for every reader; then, where there is an atheris for this Python, two minutes each of
# inputs that are led by the code that they reach.
FUZZ_SECONDS ?= 120
fuzz: $(VENV)/.developer
	@for target in csv jsonl conll config checkpoint; do $(BIN)/python tests/soak/fuzz.py $$target --inputs 100000 || exit 1; done
	@$(PIP) atheris || echo "no atheris for this Python"
	@for target in csv jsonl conll config checkpoint; do $(BIN)/python tests/soak/led.py $$target --seconds $(FUZZ_SECONDS) || exit 1; done

suites: $(VENV)/.developer
	$(BIN)/steelyard suites check

docs: $(VENV)/.developer
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache

$(VENV)/.torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) $$(grep '^torch==' constraints.txt)
	@touch $@

$(VENV)/.user: $(VENV)/.torch pyproject.toml
	$(PIP) --editable .
	@touch $@

$(VENV)/.developer: $(VENV)/.user
	$(PIP) --editable '.[dev]'
	@touch $@
