# make demo: the main job on a built-in example.   make test: all tests but the slow ones.   make docs: build/site.
# Each creates .venv and installs what it needs when it is not there: the demo torch, all else every extra.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/.ready-for-demo
READY := $(VENV)/.ready
INSTALL := -m pip install --quiet --disable-pip-version-check
WORKERS ?= auto
# A worker keeps its files to the end, and with them what their tests share.
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# What make quick leaves out beside tests marked long: sweeps over random inputs or over every op, and
# captures of whole networks.
LONG := axes differential examples execute predict/test_op_time.py ir/test_writes.py contributing \
  capture/kineto/reading/test_fuzz.py capture/onnx/test_node_tests.py \
  costmodels/evaluate/test_cnn_v100.py schedule/test_paths_traced.py

# Tests start hundreds of processes, each of which would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo quick test test-slow test-oldest test-installs coverage check format docs bench bench-plans fuzz mutants zoo constraints hashes audit clean

demo: $(DEMO)
	$(BIN)/python examples/demo.py

quick: $(READY)
	$(PYTEST) -m 'not slow and not data and not long' --durations=5 $(LONG:%=--ignore=tests/%)

test: $(READY)
	$(PYTEST) -m 'not slow' --durations=15

test-slow: $(READY) .zoo/.ready
	PYTHONPATH=.zoo $(PYTEST) -m slow --durations=15

coverage: $(READY)
	$(PYTEST) -m 'not slow' --cov --cov-report=term:skip-covered

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.tools.words
	$(BIN)/python -m tests.tools.words --subjects

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python tests/benchmarks/bench_text.py
	$(BIN)/python tests/benchmarks/bench_commands.py
	$(BIN)/python tests/benchmarks/bench_command_growth.py

bench-plans: $(READY)
	nice -n 15 $(BIN)/python tests/benchmarks/bench_plans.py --tasks 100 --out plans.jsonl

# The documentation as a site, build/site/index.html: needs no network, neither to build nor to read.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet

fuzz: $(READY)
	$(BIN)/python -m tests.capture.kineto.reading.fuzz 10000
	$(BIN)/python -m tests.capture.execution_trace.fuzz 20000
	$(BIN)/python -m tests.language.fuzz 10000
	$(BIN)/python -m tests.differential.fuzz 20000
	$(BIN)/python -m tests.cli.fuzz 100000

mutants: $(READY)
	test -d .mutation || $(BIN)/python -m tests.tools.mutate record -n auto
	$(BIN)/python -m tests.tools.mutate run costmodels/families irgraph/verbs irgraph/schedule irgraph/ir

# The command line with the oldest versions that pyproject.toml allows.
test-oldest: pyproject.toml constraints-oldest.txt
	$(PYTHON) -m venv --clear build/oldest
	build/oldest/bin/python $(INSTALL) --constraint constraints-oldest.txt --editable '.[torch,onnx,dev]'
	build/oldest/bin/python -m pytest -p no:cacheprovider tests/cli

# A wheel and a source distribution in empty environments, oldest and newest versions, each Python.
test-installs: $(READY)
	$(BIN)/python -m tests.tools.installs

zoo: $(READY) .zoo/.ready
	PYTHONPATH=.zoo $(BIN)/python -m tests.zoo

.zoo/.ready: tests/zoo/requirements.txt | $(READY)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target .zoo --requirement $<
	@touch $@

# The newest versions that work together. Two are chosen by hand: torch is a CPU build, and typer
# imports pydantic from 0.29 on, which takes as long as importing numpy.
constraints:
	$(PYTHON) -m venv --clear build/newest
	build/newest/bin/python $(INSTALL) --editable '.[all]' 'typer<0.29' \
	  "$$(grep ^torch== constraints.txt)"
	{ sed -n '/^#/p' constraints.txt; build/newest/bin/python -m pip freeze --exclude-editable \
	  | sed 's/+cpu$$//'; } > build/constraints.txt
	mv build/constraints.txt constraints.txt

# Hashes of the files that constraints.txt leads to, on this platform; pip only resolves.
hashes: $(READY)
	$(BIN)/python $(INSTALL) --dry-run --ignore-installed --report build/report.json \
	  --constraint constraints.txt '.[all]'
	$(BIN)/python -m tests.tools.hashes build/report.json

# Known vulnerabilities of the pinned versions, from a folder of OSV files: make audit ADVISORIES=FOLDER
audit: $(READY)
	$(BIN)/python -m tests.tools.audit "$(ADVISORIES)"

clean:
	rm -rf $(VENV) .zoo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .mutation .coverage

$(DEMO): pyproject.toml constraints.txt
	@echo "Creating $(VENV) and installing irgraph with torch (CPU build) …"
	@$(PYTHON) -c 'import sys; sys.exit("irgraph needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python $(INSTALL) --constraint constraints.txt --editable '.[torch]'
	@touch $@

$(READY): $(DEMO)
	@echo "Installing every extra: what the tests, training and plots need …"
	@$(BIN)/python $(INSTALL) --constraint constraints.txt --editable '.[all]'
	@touch $@
