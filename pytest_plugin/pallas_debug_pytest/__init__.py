"""The pytest plugin: options `--pallas-*`, a marker and two fixtures.

Loaded into every pytest run of an environment that has pallas-debug, so it imports only pytest and
the standard library. The rest is imported when an option, a marker or a fixture needs it.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pallas_debug_pytest import options

if TYPE_CHECKING:
    from pallas_debug.model import Target
    from pallas_debug_pytest.fixtures import Pallas

FIXTURES = frozenset({"pallas", "pallas_target"})
OUTPUT = "pallas_debug"
"""Key of the final output of an xdist worker."""

LISTENER = "pallas_debug_listener"
"""Name of the plugin that an option, a marker or a fixture starts."""

FOR_A_TPU = "Only interpret mode is supported"
"""Jax's error for a TPU kernel on a CPU."""


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", options.MARKER)
    if options.are_given(config):
        from pallas_debug_pytest import listener

        listener.start(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(
        next(item.iter_markers("pallas"), None) is not None
        or not FIXTURES.isdisjoint(getattr(item, "fixturenames", ()))
        for item in items
    ):
        from pallas_debug_pytest import listener

        with listener.lost_if_it_fails(config, "preparing tests with a marker or a fixture"):
            listener.watch(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "pallas_target" not in metafunc.fixturenames:
        return
    from pallas_debug_pytest import marks

    names = marks.settings(metafunc.config).targets
    marked = metafunc.definition.iter_markers("parametrize")
    if len(names) > 1 and not any("pallas_target" in str(mark.args[:1]) for mark in marked):
        metafunc.parametrize("pallas_target", names, indirect=True)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    is_for_a_tpu = call.excinfo is not None and FOR_A_TPU in call.excinfo.exconly()
    if report.failed and is_for_a_tpu and not item.config.pluginmanager.has_plugin(LISTENER):
        advice = f"with {options.named('interpret').flag}, pytest runs TPU kernels on the CPU"
        report.sections.append(("pallas-debug", advice))
    return report


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    # xdist's controller collects no tests, so it does not see their markers and fixtures.
    output = getattr(node, "workeroutput", {}).get(OUTPUT)
    if output is not None:
        from pallas_debug_pytest import listener

        listener.listen(node.config).receive(output)


@pytest.fixture
def pallas(request: pytest.FixtureRequest) -> Pallas:
    """The Pallas kernels of this test: `.kernels`, `.findings`, `.prints`, `.dumps`.

    `.compile(function, *args)` compiles without running; `.compare(function, reference, *args)`
    compares results; `.stats(function, *args)` returns the costs of kernels, for
    `.assert_no_spills()`, `.assert_fits(target)` and `.assert_cycles_within(baseline, 0.05)`;
    `.interpret(mode)` and `.expect(kind)` are context managers.
    """
    from pallas_debug_pytest import fixtures

    return fixtures.pallas(request)


@pytest.fixture
def pallas_target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """The chip of this test, as an abstract target; kernels that query their chip get it.

    Takes each value of `--pallas-target` in turn; by default v5e.
    """
    from pallas_debug_pytest import fixtures

    with fixtures.target(request) as chip:
        yield chip
