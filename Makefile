# make train    train on data_samples/ and leave an executed notebook and its report
# make test     run all tests and all notebooks
# Both set the environment up when that is needed. `make help` lists the rest; ARGS="..." is passed on.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.DEFAULT_GOAL := help

VENV := .venv
PY := $(VENV)/bin/python
OLDEST := .venv-oldest
ARGS :=
TESTS := -m pytest tests --numprocesses=auto --maxprocesses=4 --dist=worksteal
# A cell may take as long as nbval lets it, which is more than pytest gives a test.
NOTEBOOKS := -m pytest notebooks --nbval-lax --nbval-cell-timeout=600 --timeout=660 --nbval-current-env \
	--nbval-sanitize-with=tests/nbval.cfg

export JUPYTER_PREFER_ENV_PATH := 1
export PYDEVD_DISABLE_FILE_VALIDATION := 1

.PHONY: help setup train test test-all test-oldest gpu lab voila check docs lock clean

help:  ## print this list
	@sed -nE 's/^([a-z-]+):.*  ## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

setup:  ## create .venv with exactly requirements.lock, and install this package
	@.ci/setup $(VENV) requirements.lock 3.13 3.12 3.11

train: setup  ## run notebooks/03_train.ipynb -> reports/<time>-03_train.{ipynb,html,json}; ARGS="-p batch_size 2"
	@$(PY) -m ocrlab run notebooks/03_train.ipynb $(ARGS)

# Notebooks run alone, as they take all cores, and also if a test failed. pytest's status 5 means that ARGS selects
# nothing of one half, which does not fail the other half.
define halves
	one=0; two=0
	$(1) $(ARGS) || one=$$?
	$(2) $(ARGS) || two=$$?
	case $$one,$$two in 0,0 | 0,5 | 5,0) ;; *) exit 1 ;; esac
endef

test: setup  ## run all tests, then all notebooks
	@$(call halves,$(PY) $(TESTS),$(PY) $(NOTEBOOKS))

test-all: setup  ## run the slow tests too, one after the other: kills, full matrices, trainings
	@$(call halves,$(PY) -m pytest tests -m "slow or not slow",$(PY) $(NOTEBOOKS))

test-oldest:  ## run the tests with the oldest versions that pyproject.toml allows (Python 3.11)
	@.ci/setup $(OLDEST) requirements-oldest.lock 3.11
	$(call halves,$(OLDEST)/bin/python $(TESTS),$(OLDEST)/bin/python $(NOTEBOOKS))

# With the current Python, which brings its own torch: the machine with the card may have no network.
gpu:  ## try every claim about CUDA on a card: 8 minutes, results in gpu-results/; ARGS=--dry-run tries the script on a CPU
	@python3 benchmarks/gpu/run.py $(ARGS)

# Jupyter silently closes the connection at a message of more than 10 MB; an uploaded scan may be larger.
UPLOADS := tornado_settings='{"websocket_max_message_size": 268435456}'

lab: setup  ## open JupyterLab on the notebooks
	@$(PY) -m jupyterlab $(if $(filter 0,$(shell id -u)),--allow-root) --ServerApp.$(UPLOADS) $(ARGS) notebooks

voila: setup  ## serve notebooks/08_inspect.ipynb as a page without code, to look at document pages; ARGS="--port 8866"
	@$(PY) -m voila --Voila.$(UPLOADS) $(ARGS) notebooks/08_inspect.ipynb

check: setup  ## check lint, format, types and import rules
	@$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) -m mypy
	$(PY) -c 'from importlinter.cli import lint_imports_command; lint_imports_command()'

docs: setup  ## build docs/ and the public docstrings as a site in site/ (git-ignored); its search needs no network
	@NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict --config-file .ci/mkdocs.yml $(ARGS)
	echo "read it: python3 -m http.server --directory site"

lock:  ## write both lock files (needs uv); ARGS=--upgrade takes the newest versions
	@compile() { uv pip compile pyproject.toml --extra dev --python-version 3.11 --generate-hashes --quiet \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links "$$@"; }
	compile --universal --output-file requirements.lock $(ARGS)
	compile --python-platform x86_64-manylinux_2_28 --resolution lowest-direct --only-binary :all: --upgrade \
		--constraints <(echo 'protobuf<6  # what the oldest wandb takes; onnx takes any') \
		--output-file requirements-oldest.lock

clean:  ## remove caches and built wheels; environments, runs and reports stay
	@rm -rf dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache
	find ocrlab tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
