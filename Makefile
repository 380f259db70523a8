# `make demo` runs the demo, `make test` all tests. Both first install everything they need into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Threads of OpenBLAS waste CPU time on shared cores, and our arrays are small.
export OPENBLAS_NUM_THREADS := 1
export OMP_NUM_THREADS := 1

.PHONY: demo test test-slow test-engines test-engines-short engines check lint types layers unit format docs clean setup

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV), including PyTorch. This takes a few minutes and prints nothing."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev,frames,torch,server,demo,plan,layers,postgres]"
	@touch $(STAMP)

demo: $(STAMP)
	$(BIN)/python examples/demo/run.py -o out/demo

# All checks and tests; tests that share a loaded PyTorch stay on one worker.
test: check
	$(BIN)/pytest tests/digests tests/golden tests/properties tests/integration tests/engines -m "not long" -n 2 --dist loadgroup

# What takes minutes and seldom breaks: every benchmark in its smoke form. CI runs it after make test.
test-slow: $(STAMP)
	$(BIN)/pytest tests/integration -m long -n 2 --dist loadgroup

# What tests of engines need, where it is missing. What cannot be installed is said, and its tests are skipped with the reason.
engines: $(STAMP)
	tests/engines/install
	@$(BIN)/python -c "import ray" 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[ray]" || echo "Ray could not be installed"

# Everything on several machines, in network namespaces and on real engines; what an engine needs is installed first. Needs root.
# Kubernetes is built once, by this target only, and kept in the user's cache.
test-engines: engines
	tests/engines/build-kubernetes || echo "Kubernetes could not be built"
	$(BIN)/pytest tests/engines -n 2 --dist loadgroup -rs

# What make test leaves out and CI still runs: the suites of executors and engines on Slurm, Ray and Kubernetes (where it
# was built), and PyTorch over network namespaces. What is not installed is skipped, and the reason printed.
SHORT ?= slurm_contract slurm_engine ray_contract ray_engine kubernetes_contract kubernetes_engine kubernetes_api joined_torch
test-engines-short: $(STAMP)
	$(BIN)/pytest $(SHORT:%=tests/engines/test_%.py) -n 2 --dist loadgroup -rs

# Checks for every commit.
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

# Generate docs/job-file.md and its JSON Schema; a test checks that they are up to date.
docs: $(STAMP)
	$(BIN)/python -m coadapt.spec.job_reference docs

clean:
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
