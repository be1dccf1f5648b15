# Every target sets up what it needs: on a machine with Python 3.11, make and git, `make test` is enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
HADOOP := $(VENV)/hadoop-jars/complete
ETCD := $(VENV)/etcd/etcd

SOAKS := sim surveys parts cluster torture cuts

.PHONY: setup demo test check unit bench soak $(SOAKS:%=soak-%) clean

setup: $(READY) $(ETCD)

$(READY): pyproject.toml constraints.txt scripts/system-deps
	scripts/system-deps
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Outlast needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

# For the tests that need a real HDFS. It may fail to come about; these tests then say so.
$(HADOOP): $(READY) scripts/hadoop-jars
	scripts/system-deps --for-tests
	scripts/hadoop-jars $(VENV)

# For the tests and benchmarks that need a real etcd; the same holds for it.
$(ETCD): $(READY) scripts/etcd-binary
	scripts/etcd-binary $(VENV)

demo: $(READY)
	$(BIN)/python examples/demo.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

unit: $(READY) $(HADOOP) $(ETCD)
	$(BIN)/pytest -m 'not soak' --ignore tests/cluster --ignore tests/torture -n 2 --dist loadfile
	$(BIN)/pytest -m 'not soak' tests/cluster tests/torture

test: check unit

bench: $(READY) $(ETCD)
	$(BIN)/python -m bench all

# Each target takes 40 minutes at most, and goes on where it was interrupted; SEED=… says where seeds begin.
soak: $(READY) $(HADOOP) $(ETCD)
	$(BIN)/python scripts/soak $(SEED:%=--seed %) $(SOAKS)

$(SOAKS:%=soak-%): soak-%: $(READY) $(HADOOP) $(ETCD)
	$(BIN)/python scripts/soak $(SEED:%=--seed %) $*

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
