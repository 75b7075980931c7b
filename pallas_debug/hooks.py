"""Hooks for other distributions, based on pluggy.

Register a plugin under the entry-point group `pallas_debug`. It may be a module or an object, and
implements any of the hooks below with `hookimpl`. Our own store and pytest plugin use the same
hooks.

    # pyproject.toml
    [project.entry-points.pallas_debug]
    my_plugin = "my_package.my_plugin"

    # my_package/my_plugin.py
    from pallas_debug.hooks import hookimpl

    @hookimpl
    def pallas_debug_compilation_finished(kernel, compilation):
        print(kernel.name, compilation.target, compilation.status)

Floor 1 by its imports: `model` and `errors`. Hooks are called in the thread in which the event
occurs.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, cast

import pluggy

from pallas_debug.errors import PallasDebugError, PluginError
from pallas_debug.guards import problem_of
from pallas_debug.model import Compilation, Explanation, Finding, Kernel, PrintRecord, Target

GROUP = "pallas_debug"
"""Entry-point group, and pluggy's project name."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


class Specs:
    """The hooks, with their arguments and return values."""

    @hookspec
    def pallas_debug_targets(self) -> Sequence[Target]:  # type: ignore[empty-body]
        """Return targets to add to the built-in ones."""

    @hookspec
    def pallas_debug_explanations(self) -> Sequence[Explanation]:  # type: ignore[empty-body]
        """Return explanations to add to the catalogue."""

    @hookspec
    def pallas_debug_kernel_captured(self, kernel: Kernel, jaxpr: str, source: str | None) -> None:
        """Called when a kernel is lowered for the first time in this session.

        Args:
          kernel: description of the kernel.
          jaxpr: the kernel's jaxpr, with source lines.
          source: text of the file that contains the kernel function.
        """

    @hookspec
    def pallas_debug_kernel_used(self, kernel: Kernel) -> None:
        """Called when a program that contains this kernel is run, or lowered ahead of time."""

    @hookspec
    def pallas_debug_compilation_finished(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, Any]
    ) -> None:
        """Called when a kernel has been compiled, failed to compile, or was found in a cache.

        Args:
          files: contents by path below the target's folder: bytes, or a `Path` that exists until
            the hook returns; empty if `compilation.cached`.
        """

    @hookspec
    def pallas_debug_finding(self, finding: Finding) -> None:
        """Called when a fault is found in a kernel."""

    @hookspec
    def pallas_debug_print(self, record: PrintRecord) -> None:
        """Called when a kernel prints a line."""


def plugin_manager(*plugins: object) -> pluggy.PluginManager:
    """Return a manager with our hooks, the given plugins, and those of installed distributions."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Specs)
    for entry_point in _installed(tuple(sys.path)):
        if not manager.has_plugin(entry_point.name):
            manager.register(entry_point.load(), name=entry_point.name)
    for plugin in plugins:
        manager.register(plugin)
    return manager


@functools.cache
def _installed(path: tuple[str, ...]) -> tuple[importlib.metadata.EntryPoint, ...]:
    """Entry points of our group in the distributions found along `sys.path`.

    Cached, because `pluggy`'s `load_setuptools_entrypoints` looks at every distribution for each
    manager, which in a large environment takes longer than the checks of a small kernel.
    """
    return tuple(importlib.metadata.entry_points(group=GROUP))


def notify(manager: pluggy.PluginManager, hook: str, **kwargs: Any) -> list[PallasDebugError]:
    """Notify every plugin of an event, even if some of them raise an exception.

    Returns:
      The failures, one per plugin.
    """
    problems: list[PallasDebugError] = []
    for implementation in _implementations(manager, hook):
        try:
            _call(implementation, kwargs)
        except Exception as error:  # noqa: BLE001 - one plugin's exception is not the next one's
            problems.append(_problem(implementation, hook, error))
    return problems


def _implementations(manager: pluggy.PluginManager, hook: str) -> list[Any]:
    return list(reversed(getattr(manager.hook, hook).get_hookimpls()))


def _call(implementation: Any, kwargs: Mapping[str, Any]) -> Any:
    return implementation.function(**{name: kwargs[name] for name in implementation.argnames})


def _problem(implementation: Any, hook: str, error: Exception) -> PallasDebugError:
    if isinstance(error, PallasDebugError):
        return error
    event = hook.removeprefix(f"{GROUP}_").replace("_", " ")
    if _is_ours(implementation):
        return problem_of(error, "store", f"handling the event `{event}`")
    return _broken(implementation.plugin_name, error, f"in {hook}")


def _broken(plugin: str, error: Exception, where: str) -> PluginError:
    problem = PluginError(
        f"the plugin {plugin} raised {type(error).__name__} {where}: "
        f"{error}. pallas-debug continued without it; report it to the plugin's authors."
    )
    problem.__cause__ = error
    return problem


def _is_ours(implementation: Any) -> bool:
    plugin = implementation.plugin
    module = plugin.__name__ if isinstance(plugin, ModuleType) else type(plugin).__module__
    return module.partition(".")[0] in ("pallas_debug", "pallas_debug_pytest")


def installed_explanations(
    report: Callable[[PallasDebugError], object],
) -> tuple[Explanation, ...]:
    """Return the explanations of installed distributions, reporting plugins that fail."""
    hook = "pallas_debug_explanations"
    manager = pluggy.PluginManager(GROUP)
    found: list[Explanation] = []
    for entry_point in importlib.metadata.entry_points(group=GROUP):
        try:
            manager.register(entry_point.load(), entry_point.name)
        except Exception as error:  # noqa: BLE001 - one plugin's exception is not the next one's
            report(_broken(entry_point.name, error, "as it was loaded"))
    manager.add_hookspecs(Specs)
    for implementation in _implementations(manager, hook):
        try:
            found += map(_checked, _call(implementation, {}) or ())
        except Exception as error:  # noqa: BLE001 - likewise
            report(_broken(implementation.plugin_name, error, f"in {hook}"))
    return tuple(found)


def _checked(explanation: Explanation) -> Explanation:
    if not isinstance(explanation, Explanation):
        raise TypeError(f"{explanation!r} is not an Explanation")
    re.compile(explanation.pattern)
    return explanation


def extra_targets(manager: pluggy.PluginManager) -> tuple[Target, ...]:
    """Return the targets that plugins add."""
    lists = cast(list[Sequence[Target]], manager.hook.pallas_debug_targets())
    return tuple(target for found in lists for target in found)
