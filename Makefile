# Two commands: `make demo` and `make test`. Both set up everything they need in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# OpenBLAS' threads spin when cores are contended; nothing here gains from them.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1

.PHONY: demo test check lint types layers unit format docs clean setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): with PyTorch this takes a few minutes, and nothing is shown meanwhile."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,frames,torch,server,demo,plan,layers,postgres]"
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo/run.py -o out/demo

# everything; tests that share a loaded PyTorch stay on one worker
test: check
	$(BIN)/pytest tests/digests tests/golden tests/properties tests/integration -n 2 --dist loadgroup

# for every commit
check: lint types layers
	$(BIN)/pytest tests/unit tests/contracts tests/scenarios -n 2

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

unit: $(STAMP)
	$(BIN)/pytest tests/unit -n 2

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Pages that are made from code; a test compares them.
docs: $(STAMP)
	$(BIN)/python -m coadapt.spec.job_reference docs

clean:
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
