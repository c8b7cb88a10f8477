# What people and CI run. Each target sets up what it needs: those that only run the advisor take its packages and torch
# ($(RUNS)), the others the development packages besides ($(STAMP)).
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
RUNS   := $(VENV)/.runs
STAMP  := $(VENV)/.installed
SOURCES := advisor agent tests benchmarks docs

# Tests and servers start hundreds of processes: each would compile what another one has compiled already.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo docs gpu-check check quick test fuzz model computing waiting consumers conformance matrix lock audit format \
    serve testbed browser engines soak screenshots clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(RUNS): EXTRAS := server,agent
$(STAMP): EXTRAS := server,postgres,agent,dev,docs
# Of three hundred megabytes of Python most is never imported: what is, Python compiles then, and once.
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile

$(RUNS) $(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "No $(PYTHON) found: install Python 3.11 or newer, or run make PYTHON=/path/to/python"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12 …"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) -c constraints.txt -e '.[$(EXTRAS)]'
	@touch $(RUNS) $@

setup: $(STAMP)  ## make .venv and install everything into it, to develop

# Two nodes of one rank each on CPUs; all GPUs of this machine over NCCL where there are several.
GPUS := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU ')
ifeq ($(shell [ $(GPUS) -ge 2 ] && echo several),several)
DEMO_JOB := --nodes 1 -- torchrun --nproc-per-node $(GPUS) agent/workloads/decoder.py \
    --width 1024 --layers 12 --heads 16 --length 256 --batch 16
else
DEMO_JOB := --nodes 2 -- torchrun --nproc-per-node 1 agent/workloads/decoder.py \
    --width 96 --layers 2 --vocabulary 2048 --batch 4
demo: export CUDA_VISIBLE_DEVICES :=
endif

# Where others want the processors twice over, starts alone take minutes.
DEMO_MINUTES = $(shell awk -v cores="$$(getconf _NPROCESSORS_ONLN)" '{ print ($$1 > 2 * cores ? 12 : 4) }' \
    /proc/loadavg 2>/dev/null || echo 4)

demo: $(RUNS)  ## tune a built-in training workload on this machine: five minutes (a quarter of an hour on a busy one)
	$(BIN)/advisor tune --name demo --minutes $(DEMO_MINUTES) --block-seconds 1.2 --output advisor-demo $(DEMO_JOB)

CHECKS ?=
gpu-check: $(STAMP)  ## everything that only a GPU can show, written to docs/results/gpu.md (CHECKS="timing,memory")
	$(BIN)/python -m tests.gpu --output docs/results/gpu.md $(if $(CHECKS),--checks "$(CHECKS)")

check: $(STAMP)  ## format, lint, types, import contracts, and torch's newest release against the page
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.releases --newest

format: $(STAMP)  ## format the code and fix what can be fixed
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

browser:  # Debian's Chromium for the browser tests, where we may install it; they say so and skip where not
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } ; } || true

engines: browser  # one apt-get after the other: Debian's Slurm and Open MPI for the tests of nodes that they start, likewise
	@{ command -v slurmctld && command -v mpirun; } >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
	    { apt-get update -qq && apt-get install -y -qq --no-install-recommends slurm-wlm munge openmpi-bin >/dev/null; } ; } || true

screenshots: $(STAMP) browser  ## every page of the dashboard, in two themes and two widths, in site/screenshots
	SCREENSHOTS=site/screenshots $(BIN)/pytest -q tests/browser -k every_page_fits

docs: $(STAMP)  ## the documents as a site, in site/
	$(BIN)/python docs/make_reference.py
	$(BIN)/mkdocs build --strict --quiet --site-dir site

# Every test is in exactly one of these: tests/architecture/test_suites.py.
QUICK   := tests/architecture tests/unit
SERVING := tests/contracts tests/integration/server
WAITING := tests/integration/main_job tests/distributed tests/integration/cli tests/browser
APART   := tests/conformance

# One worker more than there are processors: some tests wait.
WORKERS := -n $$(( $$(nproc) + 1 )) --dist worksteal
quick: check  ## check, then what only computes: no server, no training, nothing thorough (two cores: five minutes)
	$(BIN)/pytest $(WORKERS) -m 'not thorough' $(QUICK)

# Tests that wait for processes leave the processors idle, so that those that compute, and the check, run beside them.
# After both come those that want a calm machine and leave it calm, three at a time, and those that judge timings or load
# the whole machine, one after the other. What fails on a shared machine counts when it fails twice, the second time alone.
BUSY := not alone and not calm
CALM := calm and not alone
AGAIN = || { [ $$? = 1 ] && echo "What failed runs once more:" && $(BIN)/pytest --last-failed
test: $(STAMP) browser engines  ## everything: check, then all tests, also those that start servers, trainings and a browser
	@$(MAKE) --jobs=3 check computing waiting
	@$(BIN)/pytest -n 3 --dist loadfile -m '$(CALM)' $(WAITING) $(AGAIN) -m '$(CALM)' $(WAITING); }
	@$(BIN)/pytest -m alone $(WAITING) $(AGAIN) -m alone $(WAITING); }

# Each of two runs at once remembers its own failures.
computing: APARTLY := -o cache_dir=.pytest_cache/computing
computing: $(STAMP)
	@$(BIN)/pytest -n $$(nproc) --dist worksteal $(APARTLY) $(QUICK) $(SERVING) $(AGAIN) $(APARTLY) $(QUICK) $(SERVING); }

waiting: $(STAMP)
	@$(BIN)/pytest -n 3 --dist worksteal -m '$(BUSY)' $(WAITING) $(AGAIN) -m '$(BUSY)' $(WAITING); }

# Some of them turn out alike, and are sent once: ten thousand are left.
FUZZ_CASES ?= 11000
fuzz: $(STAMP)  ## ten thousand made-up requests, with every kind of token (FUZZ_CASES=200000: a night's)
	SCHEMATHESIS_CASES=$(FUZZ_CASES) $(BIN)/pytest -n auto --timeout 3600 \
	    tests/integration/server/test_fuzzed_api.py tests/integration/server/test_hostile_values.py

EXAMPLES ?= 500
model: $(STAMP)  ## whatever order messages, faults and time come in, on both databases (EXAMPLES=5000: a night's)
	MODEL_EXAMPLES=$(EXAMPLES) $(BIN)/pytest -n auto --timeout 36000 tests/unit/services/test_invariants.py

consumers: $(STAMP)  # what conformance installs (Paddle, DeepSpeed, old torch …), fetched ahead of it
	$(BIN)/pytest -q -p no:cacheprovider $(APART)/test_consumers.py

conformance: $(STAMP)  ## exports read by their real consumers (downloads Paddle into a venv of its own)
	@$(BIN)/pytest -n 3 --dist worksteal -m conformance $(APART) $(AGAIN) -m conformance $(APART); }

# Outside CI: each release with CUDA is 5 GB, and a quarter of an hour on two cores. Another one: TORCH="2.15.0".
TORCH ?=
matrix: $(STAMP)  ## every lever in each of torch's releases, into docs/results/torch_releases.md (TORCH="2.6.0 2.14.1")
	$(BIN)/python -m tests.releases $(TORCH)

# What the server's image installs, with the hash of every file: what is not on the list is not installed.
lock: $(STAMP)  ## write requirements-server.lock anew, from pyproject.toml
	echo hatchling | $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    --upgrade -c constraints.txt --extra server --extra postgres pyproject.toml - -o requirements-server.lock

audit: $(STAMP)  ## known vulnerabilities of what the server's image installs (asks pypi.org)
	$(BIN)/python tests/conformance/advisories.py

serve: $(RUNS)  ## the server on http://127.0.0.1:8765
	$(BIN)/advisor serve

MINUTES ?= 5
SEED ?= 1
DATABASE ?= sqlite
REAL ?= 2
soak: $(STAMP)  ## a real server and agents under seeded faults, then the database is asked (MINUTES=30 SEED=7 DATABASE=postgresql)
	$(BIN)/python benchmarks/soak.py --minutes $(MINUTES) --seed $(SEED) --database $(DATABASE) --real $(REAL)

NODES ?= 2
RATE ?= 1gbit
comma := ,

testbed: $(RUNS)  ## nodes with shaped links on this machine (root; NODES=3 RATE=200mbit CPUS=1)
	$(BIN)/advisor testbed nodes=$(NODES),rate=$(RATE)$(if $(CPUS),$(comma)cpus=$(CPUS))

clean:  ## remove what the targets made
	rm -rf $(VENV) .conformance .releases advisor-demo site .mypy_cache .ruff_cache .pytest_cache
