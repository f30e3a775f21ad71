# `make demo` shows what the product does; `make test` runs every check. Both set up what they need.
.DEFAULT_GOAL := help
SHELL := /bin/bash
UV ?= $(shell command -v uv 2>/dev/null || echo .cache/uv/bin/uv)
RUN := $(UV) run --frozen --no-sync
# Without bytecode on disk each test worker, and each process that a test starts, compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

# A distribution's Python is compiled with profiles of its work. One that pyenv compiled takes half as long again.
PYTHON := $(shell /usr/bin/python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && \
	echo --python /usr/bin/python3)
# Airflow has an environment of its own, from the same lock.
AIRFLOW := .cache/airflow

.PHONY: help setup java judges lint types imports quick check test tests deep demo ui airflow-environment airflow
.PHONY: screenshots matrix bench bench-quick docs dist changelog clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-20s %s\n", $$1, $$2}'

setup: .venv/.ready java ## Install what the project needs (uv, the environment, Java)

.venv/.ready: uv.lock pyproject.toml
	@command -v uv >/dev/null 2>&1 || [ -x .cache/uv/bin/uv ] || { python3 -m venv .cache/uv && .cache/uv/bin/pip install --quiet uv; }
	$(UV) sync --frozen --quiet $(PYTHON)
	@touch $@

java: ## Check for Java 17+; install it where that is possible
	@scripts/java

judges: .venv/.ready ## Fetch the engines that judge our results
	@UV=$(UV) scripts/judges

lint: .venv/.ready ## Style
	$(RUN) ruff check .
	$(RUN) ruff format --check .

types: .venv/.ready ## Types
	$(RUN) mypy
	MYPYPATH=benchmarks:tests:tests/judges $(RUN) mypy tests/public_types.py benchmarks/*.py benchmarks/peers/*.py

imports: .venv/.ready ## Layer rules
	$(RUN) lint-imports

# The tests make and remove 40,000 files, which costs a fifth of their time on a disk.
MEMORY := $(shell df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4194304 {print "PYTEST_DEBUG_TEMPROOT=/dev/shm"}')

# Otherwise each worker compiles the tests, and all they import, for itself. What fails here, the tests show.
.venv/.compiled: .venv/.ready
	@$(RUN) pytest -n 0 --collect-only >/dev/null 2>&1 || true
	@touch $@

# Classes as a JVM has them after some statements of delta-spark and Iceberg: those that the tests start begin with them.
CLASSES := .cache/classes.jsa

$(CLASSES): .venv/.ready | setup judges
	@rm -f $@
	@SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit=$(CURDIR)/$@" $(RUN) pytest -n 0 -k "every_clause or goes_on" \
		tests/dml/test_dml_update_merge.py tests/judges/test_iceberg_session_catalog.py >/dev/null 2>&1 || true

tests: setup judges airflow-environment .venv/.compiled $(CLASSES) ## Tests only
	$(MEMORY) DVM_EFFORT=0.5 $(RUN) pytest -o tmp_path_retention_policy=failed

check: .venv/.ready ## Style, types, layers and the quick tests: the loop while working
	@$(MAKE) --no-print-directory -j 2 quick lint types imports

# Nothing waits for Java here: a worker more than there are cores would only add its start.
quick: .venv/.compiled ## Short tests that need neither Java nor processes of Dagster or Airflow
	$(MEMORY) DVM_EFFORT=0.4 JAVA_HOME=/nowhere $(RUN) pytest -n auto -m "not (deep or jvm or processes or slow)" \
		-o tmp_path_retention_policy=failed

test: setup ## Every check
	@$(MAKE) --no-print-directory -j 4 lint types imports tests

deep: setup judges airflow-environment ## More histories, and every table feature, against delta-spark, Lance and Paimon (hours)
	@scripts/chromium
	@scripts/stores
	@scripts/uc_server
	$(UV) sync --frozen --quiet $(PYTHON) --group screenshots
	$(RUN) pytest -m deep
	DVM_EFFORT=40 JAVA_HOME=/nowhere $(RUN) pytest -m "hypothesis and not deep and not jvm"
	DVM_FAULTS=100 $(RUN) pytest tests/contract/test_faults_histories.py
	DVM_HISTORIES=100 $(RUN) pytest tests/judges/test_lance_maintenance.py -k histories
	DVM_HISTORIES=100 $(RUN) pytest tests/judges/test_paimon_vacuum_judged.py -k leaves
	$(RUN) python benchmarks/race_restore.py 25 4000
	$(RUN) python benchmarks/race_vacuum.py 20 300
	@scripts/matrix

demo: setup ## Build tables with deletion vectors, maintain them through Dagster, show before and after
	$(RUN) dvm demo

ui: setup demo/report.json ## Open Dagster's page on the demo's tables and runs, on 127.0.0.1:3000 or the next free port
	@scripts/ui .venv

airflow-environment: $(AIRFLOW)/.ready ## Install Airflow into an environment of its own

$(AIRFLOW)/.ready: uv.lock pyproject.toml .venv/.ready
	UV_PROJECT_ENVIRONMENT=$(AIRFLOW) $(UV) sync --frozen --quiet $(PYTHON) --no-dev --group airflow-tests --extra airflow --extra connect --extra lance --extra paimon
	@touch $@

airflow: airflow-environment demo/report.json ## Open Airflow's page on the demo's tables, on 127.0.0.1:8080
	@scripts/airflow $(AIRFLOW)

demo/report.json: | setup
	$(RUN) dvm demo

screenshots: setup airflow-environment ## Take the documentation's pictures from a real Dagster and Airflow (about 15 minutes)
	@scripts/chromium
	$(UV) run --frozen --group screenshots python scripts/screenshots
	$(UV) run --frozen --group screenshots python scripts/airflow_pictures

matrix: setup ## Run the tests on the oldest and newest Dagster, PySpark and Python (about half an hour)
	@scripts/matrix

bench: setup judges ## Measure against deltalake and delta-spark (a while; see docs/explanation/benchmarks.md)
	for script in benchmarks/bench_*.py; do $(RUN) python $$script || exit 1; done

bench-quick: setup ## Measure our work against peers on small tables: does every case still work?
	$(RUN) python benchmarks/bench_peers.py --quick

docs: setup ## The documentation as a site, in site/ (then: python -m http.server -b 127.0.0.1 -d site)
	NO_MKDOCS_2_WARNING=1 $(UV) run --frozen --group docs mkdocs build --quiet --strict

dist: setup ## Build wheel and source distribution, and check them as a registry would (DVM_SOURCE_URL=https://... for links)
	rm -rf dist
	$(UV) build --quiet --out-dir dist
	$(UV) run --isolated --frozen --only-group dist twine check --strict dist/*

changelog: setup ## Show the section that changes/ would make of CHANGELOG.md (towncrier build writes it)
	$(UV) run --frozen --group changelog towncrier build --draft

clean: ## Remove what the targets above made
	rm -rf .venv .cache demo dist site
