"""Parts of a run: a watcher in each process that runs tests, a listener in the one that reports.

Imported when an option, a marker or a fixture needs it. Under xdist every worker has a watcher. The
controller has none, and does not import jax: it learns about kernels from the tests' reports, and
reads their compilations from the dump directory.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pallas_debug.compiler import targets
from pallas_debug.errors import MissingJaxError, UnknownTargetError
from pallas_debug.guards import problem_of
from pallas_debug.hooks import extra_targets, plugin_manager
from pallas_debug.installed import require_jax
from pallas_debug_pytest import options
from pallas_debug_pytest import settings as settings_
from pallas_debug_pytest.listener import Listener

if TYPE_CHECKING:
    from pallas_debug_pytest.watcher import Watcher

LISTENER = "pallas_debug_listener"
WATCHER = "pallas_debug_watcher"


def start(config: pytest.Config) -> None:
    """Start the watcher and the listener, or only the listener in xdist's controller.

    Raises:
      pytest.UsageError: an unknown target, a directory that is not writable.
    """
    settings = settings_.of(config)
    if not settings.speaks:
        return
    try:
        if settings.watches:
            given = [one.flag for one in options.OPTIONS if options.value(config, one) is not None]
            require_jax(f"pallas-debug ({', '.join(given)})")
        targets.resolve_all((*settings.targets, settings.chip), extra_targets(plugin_manager()))
    except (MissingJaxError, UnknownTargetError) as error:
        raise pytest.UsageError(str(error)) from error
    listen(config)
    runs_elsewhere = (  # xdist's controller
        not hasattr(config, "workerinput")
        and "xdist" in sys.modules
        and config.getoption("tx", None) not in (None, [])
    )
    if settings.watches and not runs_elsewhere:
        with lost_if_it_fails(config, "opening the session of the run"):
            watch(config).open()


@contextlib.contextmanager
def lost_if_it_fails(config: pytest.Config, doing: str) -> Iterator[None]:
    """Continue without pallas-debug after an exception of ours, and report it at the end.

    Raises:
      pytest.UsageError: the options are invalid.
    """
    try:
        yield
    except pytest.UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug of ours, or the state of the machine
        listen(config).not_started(problem_of(error, "hook", doing))


def watch(config: pytest.Config) -> Watcher:
    """Return the watcher for individually watched tests, registering it if needed."""
    from pallas_debug_pytest.watcher import Watcher

    watcher = config.pluginmanager.get_plugin(WATCHER)
    if isinstance(watcher, Watcher):
        return watcher
    watcher = Watcher(config, settings_.of(config))
    config.pluginmanager.register(watcher, WATCHER)
    listen(config).watcher = watcher
    return watcher


def listen(config: pytest.Config) -> Listener:
    """Return the listener, registering it if needed; it collects reports for the summary."""
    listener = config.pluginmanager.get_plugin(LISTENER)
    if isinstance(listener, Listener):
        return listener
    listener = Listener(config, settings_.of(config))
    config.pluginmanager.register(listener, LISTENER)
    return listener
