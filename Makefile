# Everything a newcomer needs: `make demo` and `make test`, on a machine with Python 3.11 or later and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench fuzz docs format lock clean

demo: $(READY)  ## the main job on data that comes with it
	$(BIN)/suffuse demo -o out/demo

test: $(READY)  ## all tests, on all cores, with the coverage floor
	$(BIN)/python -m pytest -n auto --cov --cov-report=term

check: $(READY)  ## style, types, layers, generated documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/generate.py --check

bench: $(READY)  ## quality beside time, on real data where it is there
	$(BIN)/python -m benchmarks.oxford -o out/bench
	$(BIN)/python -m benchmarks.bars -o out/bench

SECONDS := 60
fuzz: $(READY)  ## hostile files for every reader, SECONDS for each
	$(BIN)/python -c "import atheris" 2> /dev/null || $(BIN)/uv pip install --quiet --python $(VENV) --group fuzz
	$(BIN)/python -m fuzz --seconds $(SECONDS)

docs: $(READY)  ## write the generated parts of docs/
	$(BIN)/python docs/generate.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: $(READY)  ## pin the dependencies anew
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --upgrade --python-version 3.11 \
		--extra demo --extra research --extra hdf5 --extra images --extra service --extra dask --extra postgres --group dev --no-header pyproject.toml -o requirements.txt

clean:
	rm -rf $(VENV) out dist build .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .hypothesis

# uv installs in seconds where pip takes minutes.
$(READY): pyproject.toml requirements.txt
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv
	$(BIN)/uv pip install --quiet --python $(VENV) --require-hashes -r requirements.txt
	$(BIN)/uv pip install --quiet --python $(VENV) --no-deps --editable .
	touch $(READY)
