# Two commands: `make demo` and `make test`. Each makes the virtual environments that it needs, and
# is quick the second time. `make test-all` adds the slow tests. uv installs in a sixth of pip's
# time; pip knows indexes that uv has not been told of, and takes over where uv finds no package.

PYTHON ?= python3
VENV := .venv
NEWEST_VENV := .venv-newest

.PHONY: demo test test-all check docs clean

demo: $(VENV)/.installed
	@echo '$$ pallas-debug dump --target v5e,v6e pallas_debug_kernels:flash_attention'
	@$(VENV)/bin/pallas-debug dump --target v5e,v6e pallas_debug_kernels:flash_attention
	@echo '$$ pallas-debug ls dumps'
	@$(VENV)/bin/pallas-debug ls dumps
	@echo; echo 'next: pallas-debug show dumps mosaic -k flash_attention -t v5e'

test:
	@PYTHON="$(PYTHON)" $(PYTHON) tests/run.py $(ARGS)

test-all:
	@PYTHON="$(PYTHON)" $(PYTHON) tests/run.py --all $(ARGS)

check: $(VENV)/.installed
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

docs: $(VENV)/.installed
	$(VENV)/bin/python docs/generate.py
	$(VENV)/bin/mkdocs build --strict

$(VENV)/.installed: pyproject.toml
	@echo "installing into $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile uv
	@$(VENV)/bin/uv pip install --quiet --python $(VENV)/bin/python --editable '.[dev]' || \
	  $(VENV)/bin/pip install --quiet --disable-pip-version-check --no-compile --editable '.[dev]'
	@$(VENV)/bin/python tests/warm.py
	@touch $@

clean:
	rm -rf $(VENV) $(NEWEST_VENV) dumps site
