"""Who takes part in a run: a watcher where tests run, a listener where the user is talked to.

Imported when an option, a marker or a fixture asks. Under xdist every worker has a watcher. The
controller has none, and jax is not imported there: it hears of kernels by the tests' reports, and
reads what became of them in the dump directory.

PYTEST_DONT_REWRITE
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pallas_debug.compiler import targets
from pallas_debug.errors import UnknownTargetError
from pallas_debug.guards import problem_of
from pallas_debug.hooks import extra_targets, plugin_manager
from pallas_debug_pytest import settings as settings_
from pallas_debug_pytest.listener import Listener

if TYPE_CHECKING:
    from pallas_debug_pytest.watcher import Watcher

LISTENER = "pallas_debug_listener"
WATCHER = "pallas_debug_watcher"


def start(config: pytest.Config) -> None:
    """Begin to watch, in a process that runs tests; in xdist's controller, to listen.

    Raises:
      pytest.UsageError: a target that nobody knows, a directory that cannot be written to.
    """
    settings = settings_.of(config)
    if not settings.speaks:
        return
    listen(config)
    try:
        targets.resolve_all(settings.targets, extra_targets(plugin_manager()))
    except UnknownTargetError as error:
        raise pytest.UsageError(str(error)) from error
    if settings.watches and not _is_controller(config):
        with lost_if_it_fails(config, "opening the session of the run"):
            watch(config).open()


@contextlib.contextmanager
def lost_if_it_fails(config: pytest.Config, doing: str) -> Iterator[None]:
    """An exception of ours ends no run: it goes on without us, and says so at its end.

    Raises:
      pytest.UsageError: what was asked for makes no sense.
    """
    try:
        yield
    except pytest.UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - a bug of ours, or the machine's state
        listen(config).lose(problem_of(error, "hook", doing))


def watch(config: pytest.Config) -> Watcher:
    """Have tests watched that ask for it themselves; the watcher."""
    from pallas_debug_pytest.watcher import Watcher

    watcher = config.pluginmanager.get_plugin(WATCHER)
    if isinstance(watcher, Watcher):
        return watcher
    watcher = Watcher(config, settings_.of(config))
    config.pluginmanager.register(watcher, WATCHER)
    listen(config).watcher = watcher
    return watcher


def listen(config: pytest.Config) -> Listener:
    """Hear of kernels by reports, for the summary; the listener."""
    listener = config.pluginmanager.get_plugin(LISTENER)
    if isinstance(listener, Listener):
        return listener
    listener = Listener(config, settings_.of(config))
    config.pluginmanager.register(listener, LISTENER)
    return listener


def _is_controller(config: pytest.Config) -> bool:
    """Whether tests run in other processes than this one."""
    if hasattr(config, "workerinput"):
        return False
    return "xdist" in sys.modules and config.getoption("tx", None) not in (None, [])
