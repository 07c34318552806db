# The developer's commands; CI runs the same ones. PYTHON picks the interpreter that makes the environment.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
STAMP   = $(VENV)/.installed
unexport PYTHONDONTWRITEBYTECODE  # the tests start programs: what they import is compiled once

.PHONY: help quickstart ring test test-all test-extras test-extras-alone test-torch mutants stale reproduce check bench docs sbom lock format install clean
help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## */\t/' | expand -t 14

QUICK   = $(VENV)/.quick
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(QUICK): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-compile -e '.[train]'
	@touch $@

$(STAMP): $(QUICK)
	$(PIP) -e '.[dev]'
	@touch $@

install: $(STAMP)  ## make the developer's environment, if missing

quickstart: $(QUICK)  ## install what training needs and no more, run the main job on packaged data, name the report
	$(BIN)/apiece train examples/adult.toml

ring: $(STAMP)   ## the tests nearest to what changed, and the laws, in two minutes
	$(BIN)/python .ci/ring

# Tests that copy their process for each record: by themselves, since a copy costs what the process
# has in memory, and all tests together make it large.
COPYING = tests/training tests/neighbours
PYTEST  = $(BIN)/python -m pytest -n 2 --dist worksteal -q

test: $(STAMP)   ## the tests, under 15 minutes on two cores
	@failed=0; \
	$(PYTEST) -m 'not slow' $(COPYING) || failed=1; \
	$(PYTEST) -m 'not slow' $(addprefix --ignore=,$(COPYING)) || failed=1; \
	exit $$failed

test-all: $(STAMP)  ## all tests, the slow ones too
	@failed=0; \
	$(PYTEST) $(COPYING) || failed=1; \
	$(PYTEST) $(addprefix --ignore=,$(COPYING)) || failed=1; \
	exit $$failed

test-extras: $(STAMP)  ## the tests that need an extra (ray, flower, lightning, mlflow, huggingface, networks, oracles, spark), each installed first
	.ci/extras $(BIN)/python

test-extras-alone: $(STAMP)  ## apiece without extras, then each extra, in a fresh environment with its commands; all of them: .ci/extras-alone
	$(BIN)/python .ci/extras-alone --quick

test-torch:      ## the engine's tests on the oldest, a middle and the tested PyTorch, each in an environment of its own: TORCH="2.6.0 2.13.0"
	.ci/test-torch $(PYTHON) $(or $(TORCH),2.6.0 2.9.1 2.13.0)

mutants: $(STAMP)  ## how many planted faults the tests find (hours; goes on where it stopped): SAMPLE=100 PACKAGES="plan ledger"
	@$(PIP) -e '.[dev,mutants]'
	$(BIN)/python -m research.benchmarks.mutants --sample $(or $(SAMPLE),100) $(if $(PACKAGES),--packages $(PACKAGES))

stale: $(STAMP)  ## stored results whose code has changed since they were made, with the command of each
	$(BIN)/python -m research.benchmarks.stale

# Rules of the source and the pages: each test lists all that break its rule.
HOUSE   = $(addprefix tests/test_, layers.py structure.py loading.py references.py remedies.py docstring_style.py public_names.py site.py names_in_tests.py)

reproduce: $(STAMP)  ## tables and figures of papers (research/README.md): all of them listed, or TABLES="A B" run
	$(BIN)/python -m research $(or $(TABLES),--list)

check: $(STAMP)  ## format, lint, strict types, the rules of the source and the pages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -m 'not slow' $(HOUSE)

bench: $(STAMP)  ## what users wait for, timed by asv and kept by commit in .asv (make bench, then asv publish)
	@$(PIP) -e '.[bench]'
	$(BIN)/asv machine --yes --machine here >/dev/null
	$(BIN)/asv run --machine here -E existing:$(BIN)/python --set-commit-hash $$(git rev-parse HEAD)

docs: $(STAMP)   ## guides and API reference as static pages in site/; any warning fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "to read them: $(BIN)/python -m http.server --directory site"

sbom: $(STAMP)   ## what the tested environment is made of, as CycloneDX, in dist/
	mkdir -p dist
	$(PIP) cyclonedx-bom
	$(BIN)/cyclonedx-py environment --pyproject pyproject.toml --output-reproducible -o dist/apiece.cdx.json $(BIN)/python

lock: $(STAMP)   ## the very files that a contributor's environment is made of, with their digests, in pylock.toml
	@$(PIP) 'pip>=25.1'
	$(BIN)/python -m pip lock --quiet -c constraints.txt -e '.[dev]' -o pylock.toml

format: $(STAMP)  ## put the code in form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:           ## remove the environment and caches
	rm -rf $(VENV) .venv-torch site .mypy_cache .pytest_cache .ruff_cache
