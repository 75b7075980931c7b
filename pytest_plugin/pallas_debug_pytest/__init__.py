"""The pytest plugin of pallas-debug: `--pallas-dump`, `--pallas-target`, `--pallas-interpret`.

Loaded into every pytest run of an environment that has pallas-debug, so at import it knows pytest
and the standard library alone. `run.py` does the work, and is imported when an option asks for it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import pytest

from pallas_debug_pytest import options


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    settings = options.resolve(config)
    if settings is None:
        return
    from pallas_debug_pytest import run

    run.start(config, settings)
