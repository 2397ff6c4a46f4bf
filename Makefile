# make demo: install Meshwright into .venv and run its main job on a built-in example.
# make test: set up what the tests need, then lint, types and tests.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.installed-dev $(VENV)/.tools $(VENV)/.compiled

.PHONY: demo test test-slurm lint types unit bench study study-nccl study-training pipelines soak fuzz reproduction pictures screenshots docs web format clean

demo: $(VENV)/.installed
	$(BIN)/meshwright plan --system gcp-a100:4 --axes data=4,shard=16 --reduce data=2GiB --reduce 'shard=64MiB*80'

# What the tests need is installed while what Python needs is.
test: | $(BIN)/python
	$(MAKE) --no-print-directory -j 3 lint types unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy src tests benchmarks examples/*.py examples/gpt/*.py

# Two workers more than there are cores: tests that wait for emulated networks and for other processes leave cores idle.
# Tests start hundreds of interpreters: all of them load Meshwright compiled, also where Python is told to write no bytecode.
unit: $(READY)
	$(BIN)/python -m compileall -q -j 0 src tests benchmarks
	$(BIN)/pytest -n $$(($$(getconf _NPROCESSORS_ONLN) + 2)) --dist worksteal

# A part of `unit` too: Slurm on an emulated cluster, with daemons that the tests start and end.
test-slurm: $(READY)
	scripts/install-slurm
	$(BIN)/pytest tests/slurm

bench: $(READY)
	$(BIN)/python -m benchmarks.core
	$(BIN)/python -m benchmarks.planner
	$(BIN)/python -m benchmarks.workloads
	$(BIN)/python -m benchmarks.hierarchies
	$(BIN)/python -m benchmarks.engines

study: $(READY)
	$(BIN)/python -m benchmarks.study

study-nccl: $(READY)
	$(BIN)/python -m benchmarks.nccl

study-training: $(READY)
	$(BIN)/python -m benchmarks.training

pipelines: $(READY)
	$(BIN)/python -m benchmarks.pipelines

# What it is to run can be chosen: make soak SOAK="--minutes 30 --parts ranks,benches".
soak: $(READY)
	$(BIN)/python -m benchmarks.soak $(SOAK)

# How many cases, of what, can be chosen: make fuzz FUZZ="--cases 1000000 --target plans".
fuzz: $(READY)
	$(BIN)/python -m tests.fuzz --out benchmarks/results/fuzz.json $(FUZZ)

reproduction: $(VENV)/.installed
	$(BIN)/meshwright reproduce --out docs/reproduction.md > /dev/null

pictures: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[report]"
	$(BIN)/python docs/pictures.py

screenshots: $(READY)
	$(BIN)/python docs/screenshots.py

# The docs as a site, in build/site; a warning is an error. The variable leaves out a notice that is none about these docs.
docs: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The page of `meshwright show` and `meshwright explore`, from web/ to src/meshwright/show/assets. It needs Node.
web:
	cd web && npm ci --ignore-scripts --no-audit --no-fund && npm test && npm run build

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist web/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	PYTHON="$(PYTHON)" scripts/make-venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.tools: scripts/install-tools | $(BIN)/python
	scripts/install-tools
	touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e ".[dev,torch,jax,mpi,report,explore]"
	touch $@ $(VENV)/.installed

# pip would compile on one core, and what nothing here loads too. Packages have templates that are no Python, which it
# leaves out in silence as well.
$(VENV)/.compiled: $(VENV)/.installed-dev
	$(BIN)/python -m compileall -q -j 0 -x '/(tests|site-packages/(pip|setuptools|mypyc?|fontTools|pygments/lexers|torch/(testing/_internal|onnx)))/' $(VENV)/lib > /dev/null 2>&1 || true
	touch $@
