# Everything you type. `make` alone shows the list.
#
# Needs Python 3.11 or newer, and make. Whatever is fetched or made stays in this folder; no sudo. But for one thing: the
# tests and `make images` want Redis, RabbitMQ and PostgreSQL, and install Debian's packages where they may. Without them
# tests skip what needs them.
# Another Python than the first suitable one: make test PYTHON=python3.12

.DEFAULT_GOAL := help
.PHONY: help install tools run music images status show servers check look test cpu soak bench bench-peers format pins audit clean \
	anew
.DELETE_ON_ERROR:

# Settings of the caller's shell that would make the virtual environment something other than what the pins say.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE

RECENT := import sys; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$python -c '$(RECENT)' 2>/dev/null && echo $$python && exit; done; echo python3)
VENV := .venv/bin/python
PIP := PIP_USER=0 $(VENV) -m pip --disable-pip-version-check --no-input --no-cache-dir --retries 3

# More test processes than cores: many tests wait for processes of their own.
CORES := $(shell nproc 2>/dev/null || echo 2)
WORKERS ?= $(shell echo $$(( $(CORES) * 2 )))

# Two makes at once in one folder: the second waits for the first one's environment instead of making another.
LOCK := $(if $(shell command -v flock 2>/dev/null),flock Makefile)

# The environment is made again if its Python is gone, or is not the one that the caller names.
IDENTITY := import sys; print(sys.version, sys.base_prefix)
ifeq ($(origin PYTHON),file)
USABLE := $(shell $(VENV) -c '' 2>/dev/null && echo yes)
else
USABLE := $(shell [ "$$($(VENV) -c '$(IDENTITY)' 2>&1)" = "$$("$(PYTHON)" -c '$(IDENTITY)' 2>&1)" ] && echo yes)
endif

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1 \2/p' Makefile | while read -r make target text; do \
		printf '  make %-11s %s\n' "$$target" "$$text"; done

install: ## fetch the libraries into .venv, once, and again when the pins change
	@$(LOCK) $(MAKE) -s .venv/ready
	@$(VENV) -m compileall -q retake *.py

tools: install
	@$(LOCK) $(MAKE) -s .venv/tools

NO_PYTHON = Python 3.11 or newer is needed, and $(PYTHON) is $$("$(PYTHON)" --version 2>/dev/null || echo missing): \
sudo apt install python3.11-venv, then make PYTHON=python3.11
NO_VENV = $(PYTHON) cannot make virtual environments: \
sudo apt install $$("$(PYTHON)" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
NO_NETWORK = No network: the libraries must be fetched once; nothing here needs it afterwards (details: .venv/pip.log)
NO_LUCK = The libraries could not be installed (details: .venv/pip.log)

.venv/ready: requirements.txt $(if $(USABLE),,anew)
	@"$(PYTHON)" -c '$(RECENT)' 2>/dev/null || { echo "$(NO_PYTHON)" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv; from ensurepip import bootstrap' 2>/dev/null || { echo "$(NO_VENV)" >&2; exit 1; }
	@echo "== making .venv with $$("$(PYTHON)" --version)"
	@rm -rf .venv && "$(PYTHON)" -m venv .venv
	$(call fetch,requirements.txt)

.venv/tools: requirements-dev.txt .venv/ready
	$(call fetch,requirements-dev.txt)

# How far pip has come, for a terminal: the first time takes a minute, and silence looks like a hang.
PROGRESS = if grep -q '^Installing collected' .venv/pip.log 2>/dev/null; then echo "installing them          "; \
else echo "$$(grep -c '^Collecting' .venv/pip.log 2>/dev/null) of $$(grep -c '==' $(1)) found"; fi

# Compiled here because an idle tick is short: compiling the libraries would be most of it, and under cron it may not be
# allowed to keep what it compiled.
define fetch
@echo "== fetching the libraries that $(1) names"
@if [ -t 1 ]; then while sleep 1; do printf '\r   %s' "$$($(PROGRESS))"; done & watch=$$!; fi; \
$(PIP) install --compile --require-hashes -r $(1) >.venv/pip.log 2>&1; failed=$$?; \
[ -z "$$watch" ] || { kill $$watch; printf '\r%40s\r' ''; }; \
[ $$failed = 0 ] || { exec >&2; \
	if grep -q 'connection broken' .venv/pip.log; then echo "$(NO_NETWORK)"; \
	else grep '^ERROR' .venv/pip.log; echo "$(NO_LUCK)"; fi; exit 1; }
@touch $@
endef

run: install ## a generation from topic to video in the sandbox, with two failures ordered: no account, no keys
	@mkdir -p demo; at=demo/$$(date +%Y%m%d-%H%M%S); mkdir "$$at" 2>/dev/null || at=$$(mktemp -d "$$at-XXXX"); \
	echo "== RETAKE_STORAGE_URL=file:$$at/bucket $(VENV) b2_storage_manager.py --sandbox --until-done --order upscale#1-2=500"; \
	RETAKE_STORAGE_URL="file:$$at/bucket" $(VENV) b2_storage_manager.py --sandbox --until-done --order 'upscale#1-2=500'

music: install ## a track to a published video in the sandbox: a failed step, a tap on Telegram, an upload cut in the middle
	@mkdir -p demo; at=demo/music-$$(date +%Y%m%d-%H%M%S); mkdir "$$at" 2>/dev/null || at=$$(mktemp -d "$$at-XXXX"); \
	echo "== $(VENV) -m retake.music.demo $$at"; $(VENV) -m retake.music.demo "$$at"

# The demo that `make run` made last.
DEMO := $(firstword $(shell ls -td demo/*/bucket 2>/dev/null))
LOOK = @[ -n "$(DEMO)" ] || { echo "There is no demo to look at yet: make run makes one" >&2; exit 1; }; \
	export RETAKE_STORAGE_URL="file:$(DEMO)"; echo "== RETAKE_STORAGE_URL=$$RETAKE_STORAGE_URL $(VENV) -m retake $(1)"; \
	$(VENV) -m retake $(1)

status: install ## how the latest demo stands
	$(call LOOK,status)

show: install ## everything that happened in the latest demo (RUN=ID: to that generation)
	$(call LOOK,show $(or $(RUN),$(shell RETAKE_STORAGE_URL="file:$(DEMO)" $(VENV) -m retake runs --json 2>/dev/null \
		| sed -n 's/.*"task_id": "\([^"]*\)".*/\1/p' | head -1)))

# Their programs alone are wanted. Nothing is started: while they are installed policy-rc.d forbids it, afterwards the
# services are disabled, and of PostgreSQL no cluster is made. RETAKE_POSTGRES=FOLDER names other programs.
REDIS := $(firstword $(shell command -v redis-server 2>/dev/null) $(wildcard /usr/bin/redis-server))
RABBITMQ := $(firstword $(wildcard /usr/lib/rabbitmq/bin/rabbitmq-server) $(shell command -v rabbitmq-server 2>/dev/null))
INITDB := $(firstword $(shell command -v initdb 2>/dev/null) $(wildcard /usr/lib/postgresql/*/bin/initdb))
# Ubuntu's package of Chromium only points to a snap, and its daemon is not installed for the sake of tests.
SNAP := $(shell grep -sx ID=ubuntu /etc/os-release)
CHROMIUM := $(firstword $(shell command -v chromium google-chrome $(if $(SNAP),,chromium-browser) 2>/dev/null) \
	$(wildcard $(HOME)/.cache/ms-playwright/chromium-*/*/chrome))
CLUSTERS := /etc/postgresql-common/createcluster.conf
POLICY := /usr/sbin/policy-rc.d
MISSING = $(strip $(if $(REDIS),,redis-server) $(if $(RABBITMQ),,rabbitmq-server) \
	$(if $(INITDB)$(RETAKE_POSTGRES),,postgresql) $(BROWSER) $(CURL))
SERVICES = $(filter-out postgresql chromium curl,$(MISSING)) $(if $(RABBITMQ),,$(if $(shell command -v epmd 2>/dev/null),,epmd.socket))

define install_servers
mkdir -p $(dir $(CLUSTERS)) && { [ -e $(CLUSTERS) ] || echo "create_main_cluster = false" >$(CLUSTERS); } && \
{ [ -e $(POLICY) ] || { trap "rm -f $(POLICY)" EXIT; trap "exit 1" HUP INT TERM; \
printf "#!/bin/sh\nexit 101\n" >$(POLICY); chmod +x $(POLICY); }; } && \
apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends \
-o Dpkg::Options::=--force-confold install $(MISSING) || exit 1; \
for service in $(SERVICES); do systemctl --root=/ disable $$service; update-rc.d $$service disable; done; exit 0
endef

# $(1): what they are for. Fails if they cannot be installed.
servers = [ -z "$(MISSING)" ] || { mkdir -p .venv; [ "$$(id -u)" = 0 ] || sudo="sudo -n"; \
	command -v apt-get >/dev/null && $$sudo true 2>/dev/null && echo "== installing $(MISSING) for $(1)" && \
	$$sudo sh -c '$(install_servers)' >.venv/apt.log 2>&1; }

servers: BROWSER = $(if $(CHROMIUM)$(SNAP),,chromium)
servers: CURL = $(if $(shell command -v curl 2>/dev/null),,curl)
servers:
	@$(call servers,the tests) || echo "Missing, and without it tests are skipped: sudo apt install $(MISSING)" >&2
	@[ -n "$(CHROMIUM)$(BROWSER)" ] || \
		echo "No browser, and without one tests are skipped: $(VENV) -m playwright install --with-deps chromium" >&2

# Where a server is missing and cannot be installed, the command says so.
images: install ## the image-job service on this machine, until Ctrl-C: servers, API, workers (UP='--port 9000')
	@$(call servers,the image-job service) || true
	@echo "== $(VENV) -m retake images up $(UP)"; exec $(VENV) -m retake images up $(UP)

look: tools servers ## pictures of each page of the dashboard, in demo/: look at them
	@PYTHONPATH=. $(VENV) tests/web/look.py demo/look-$$(date +%Y%m%d-%H%M%S)

define lint
@echo "== ruff check"
@$(VENV) -m ruff check --quiet
@echo "== ruff format --check"
@$(VENV) -m ruff format --check --quiet
@echo "== mypy --strict"
@$(VENV) -m mypy --strict
endef

check: tools ## for each save, within a minute: lint, format, types, unit tests, contracts in memory and on a directory
	$(lint)
	@echo "== pytest, without what takes long"
	@RETAKE_QUICK=1 $(VENV) -m pytest -q -n $(CORES) --dist worksteal -p no:schemathesis -m "not search and not process and not slow"

test: tools servers ## lint, format, types, and every test
	$(lint)
	@echo "== pytest"
	@$(VENV) -m pytest --collect-only -qq >/dev/null || true # compiles the tests once, not in each process
	@$(VENV) -m pytest -q -n $(WORKERS) --dist worksteal

cpu: tools servers ## how much CPU each file of the tests takes (TESTS=tests/cron: those of one folder)
	@$(VENV) -m pytest -q -n $(CORES) --dist worksteal -p tests.cpu_by_file $(TESTS)

soak: tools servers ## the searches at length: SEEDS=20000, every pair of deaths (an hour or more)
	@RETAKE_SEEDS=$(or $(SEEDS),20000) RETAKE_PAIRS_EVERY=1 $(VENV) -m pytest -q -n auto -m search
	@RETAKE_SEEDS=$(or $(SEEDS),20000) $(VENV) -m pytest -q -n auto tests/runs/test_ledger_clouds.py

bench: tools ## the figures of docs/performance.md, measured on this machine
	@$(VENV) -m bench

bench-peers: tools build/peers/ready ## install other systems for durable work into build/, and measure them beside Retake
	@$(VENV) -m bench peers

build/peers/ready: bench/peers/requirements.txt
	@rm -rf build/peers && "$(PYTHON)" -m venv build/peers
	@PIP_USER=0 build/peers/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r $< \
		|| { echo "$(NO_NETWORK)" >&2; exit 1; }
	@touch $@

format: tools ## fix what lint and format can fix by themselves
	@$(VENV) -m ruff check --fix --quiet
	@$(VENV) -m ruff format --quiet

# Hashes of every file of a version, so that what is fetched is what was pinned, whichever machine fetches it.
COMPILE = build/pins/bin/pip-compile --quiet --generate-hashes --allow-unsafe --strip-extras --no-annotate \
	--no-header --no-emit-options --extra b2 --extra s3 --extra postgres --extra apprise --extra music --extra images \
	--extra web \
	pyproject.toml

pins: ## pin again, with hashes: the newest versions that pyproject.toml's ranges allow
	@rm -rf build && "$(PYTHON)" -m venv build/pins
	@build/pins/bin/python -m pip install -q pip-tools
	@$(COMPILE) --upgrade -o build/run.txt
	@cp build/run.txt build/all.txt && $(COMPILE) --extra dev -o build/all.txt
	@{ grep '^#' requirements.txt; cat build/run.txt; } >build/requirements.txt
	@{ grep -E '^(#|-r)' requirements-dev.txt; awk 'NR == FNR { if (/^[A-Za-z]/) run[$$1]; next } \
		/^[A-Za-z]/ { keep = !($$1 in run) } keep' build/run.txt build/all.txt; } >build/requirements-dev.txt
	@mv build/requirements.txt build/requirements-dev.txt .

audit: tools ## look the pinned libraries up among the known vulnerabilities (needs a network)
	@"$(PYTHON)" -m venv build/audit && build/audit/bin/python -m pip install -q pip-audit || { echo "$(NO_NETWORK)" >&2; exit 1; }
	@for pins in requirements.txt requirements-dev.txt; do \
		build/audit/bin/pip-audit --disable-pip --require-hashes -r $$pins || exit 1; done

clean: ## remove what make made: .venv, caches, demo/ (never a bucket of yours)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build demo *.egg-info
	@find retake tests bench -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null; rm -rf __pycache__
