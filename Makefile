# make demo: the main job on a built-in example.   make test: all tests.
# Both create .venv and install what they need when it is not there.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check format bench fuzz mutants clean

demo: $(READY)
	$(BIN)/python examples/demo.py

test: $(READY)
	$(BIN)/python -m pytest -n auto

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	$(BIN)/python tests/benchmarks/bench_text.py
	$(BIN)/python tests/benchmarks/bench_commands.py

fuzz: $(READY)
	$(BIN)/python -m tests.capture.kineto.reading.fuzz 10000
	$(BIN)/python -m tests.capture.execution_trace.fuzz 20000
	$(BIN)/python -m tests.language.fuzz 10000

mutants: $(READY)
	test -d .mutation || $(BIN)/python -m tests.tools.mutate record -n auto
	$(BIN)/python -m tests.tools.mutate run costmodels/families irgraph/verbs irgraph/schedule irgraph/ir

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache

$(READY): pyproject.toml constraints.txt
	@echo "Creating $(VENV) and installing irgraph with torch (CPU build) and the test tools …"
	@$(PYTHON) -c 'import sys; sys.exit("irgraph needs Python 3.11 or newer") if sys.version_info < (3, 11) else None'
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch,onnx,dev]'
	@touch $(READY)
	@echo "Done."
