# Every target sets itself up: a fresh clone needs Python 3.11+, make and a C compiler, nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PIP) install --quiet --constraint constraints.txt

# Two test processes; a file is run by one of them, so that the fixtures of a module are made once. Files start in the order of their names:
# the long ones (tests/bench) first, so that both processes end at about the same time.
WORKERS ?= 2
PYTEST := $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder --durations=15

.PHONY: help demo browser test test-cluster coverage check format docs screenshots bench results results-again soak clean bench-check paper-setup rehearse-paper

help:
	@echo "make demo     the main job on the embedded corpus"
	@echo "make test     all tests (about 8 minutes on two cores), and which were slowest"
	@echo "make test-cluster   the tests on two Ray nodes"
	@echo "make coverage all tests with coverage of the package (half as much time again)"
	@echo "make check    format, lint, types, generated docs, tests with coverage"
	@echo "make bench    measure speed           -> docs/results;  make bench-check: has it fallen?"
	@echo "make results  run the experiments     -> docs/results;  make results-again: some runs once more, compared"
	@echo "make paper-setup  what the paper's scale needs;  make rehearse-paper: that scale with tiny models, without a GPU (three hours)"
	@echo "make soak     long fault and fuzz runs -> docs/results"
	@echo "make docs     rewrite the generated docs and build the site;  make screenshots;  make format;  make clean"

.venv/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "PromptDSI needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	@touch $@

# The stamps are older than what they were made from only when that changed: the second time costs nothing.
.venv/run: .venv/python pyproject.toml constraints.txt
	@echo "installing promptdsi into .venv (once; some minutes on a slow line)"
	$(INSTALL) --editable .
	@touch $@

.venv/dev: .venv/run
	@echo "installing what the tests need into .venv (once)"
	$(INSTALL) --editable '.[dev]'
	@touch $@

demo: .venv/run
	@$(BIN)/promptdsi demo

# The browser tests drive a real Chromium. It is installed only where it is missing and can be had; elsewhere they are skipped, aloud.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
		echo "installing Chromium for the browser tests (once)"; \
		{ apt-get install --yes --no-install-recommends chromium || \
		{ apt-get update && apt-get install --yes --no-install-recommends chromium; }; } >/dev/null 2>&1 || \
		echo "Chromium is missing and could not be installed: the browser tests will be skipped"; }

test: .venv/dev browser
	$(PYTEST)

# Ray is large and its nodes starve beside other tests: its part of the tests has a target of its own.
.venv/ray: .venv/dev
	@echo "installing Ray into .venv (once)"
	$(INSTALL) --editable '.[dev,ray]'
	@touch $@

test-cluster: .venv/ray
	$(BIN)/pytest tests/engine/test_ray_store.py tests/training/test_ray_training.py

coverage: .venv/dev browser
	$(PYTEST) --cov --cov-report=term

check: .venv/dev browser
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m tools.docs.build_demo --check
	$(BIN)/python -m tools.docs.build_cli --check
	$(BIN)/python -m tools.docs.build_http --check
	$(BIN)/python -m tools.docs.build_reproduction --check
	$(BIN)/python -m tools.bench.summary --check
	$(PYTEST) --cov --cov-report=term

format: .venv/dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site is not part of the tests' environment: what builds it is installed here.
.venv/docs: .venv/run
	@echo "installing what builds the site into .venv (once)"
	$(INSTALL) --editable '.[docs]'
	@touch $@

docs: .venv/docs
	$(BIN)/python -m tools.docs.build_demo
	$(BIN)/python -m tools.docs.build_cli
	$(BIN)/python -m tools.docs.build_http
	$(BIN)/python -m tools.docs.build_reproduction
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site is in site/: open site/index.html"

screenshots: .venv/dev browser demo
	$(BIN)/python -m tools.docs.build_screenshots

bench: .venv/dev
	$(BIN)/python -m tools.bench.training
	$(BIN)/python -m tools.bench.passes
	$(BIN)/python -m tools.bench.adding
	$(BIN)/python -m tools.bench.queries
	$(BIN)/python -m tools.bench.words
	$(BIN)/python -m tools.bench.creating
	$(BIN)/python -m tools.bench.syncing
	$(BIN)/python -m tools.bench.opening
	$(BIN)/python -m tools.bench.serving
	$(BIN)/python -m tools.bench.reading
	$(BIN)/python -m tools.bench.summary

# Fails where a main ratio has fallen by more than a fifth below tools/bench/floors.json, which `make bench` wrote.
bench-check: .venv/dev
	$(BIN)/python -m tools.bench.summary --floors

# Hours the first time; what is recorded is not run again. Parameters are chosen first, on dev queries, then evaluated on the test split once.
EXPERIMENTS := $(addprefix experiments/,datasets.toml main.toml curves.toml passes.toml utilisation.toml topics.toml layers.toml \
	memory.toml ablations.toml choose.toml)
BENCH := --scale squadx --results docs/results

results: .venv/dev
	$(BIN)/python -m tools.bench.results_streams
	$(BIN)/promptdsi bench run $(EXPERIMENTS) $(BENCH)
	$(BIN)/promptdsi bench report $(EXPERIMENTS) $(BENCH)
	$(BIN)/promptdsi bench run experiments/frontier.toml $(BENCH)
	$(BIN)/promptdsi bench report experiments/frontier.toml $(BENCH)
	$(BIN)/promptdsi bench run experiments/words.toml $(BENCH)
	$(BIN)/promptdsi bench report experiments/words.toml $(BENCH)
	$(BIN)/python -m tools.bench.search_quality
	$(BIN)/python -m tools.bench.search_quality --articles
	$(BIN)/python -m tools.bench.calibration
	$(BIN)/python -m tools.bench.creating --efforts
	$(BIN)/python -m tools.bench.teaching
	$(BIN)/python -m tools.docs.build_reproduction

results-again: .venv/dev
	$(BIN)/python -m tools.bench.results_again

# What the scale `paper` needs beside the package: BERTopic, the tokenizer of docT5query, DPR's loss, figures.
.venv/paper: .venv/run
	@echo "installing what the paper's scale needs into .venv (once)"
	$(INSTALL) --editable '.[topics,doc2query,dpr,bench]'
	@touch $@

paper-setup: .venv/paper

rehearse-paper: .venv/paper
	$(BIN)/python -m tools.rehearse_paper

soak: .venv/dev
	$(BIN)/python -m tools.soak.soak_readers
	$(BIN)/python -m tools.soak.soak_kills
	$(BIN)/python -m tools.soak.soak_serving
	$(BIN)/python -m tools.soak.soak_strangers

clean:
	rm -rf .venv build dist site promptdsi-demo .pytest_cache .ruff_cache .mypy_cache .hypothesis .coverage
