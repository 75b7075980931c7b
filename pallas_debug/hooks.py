"""Hooks for other distributions, by pluggy.

Register a plugin under the entry-point group `pallas_debug`; it may be a module or an object, and
implements any of the hooks below with `hookimpl`. Our own store and pytest plugin are written
against the same hooks.

    # pyproject.toml
    [project.entry-points.pallas_debug]
    my_plugin = "my_package.my_plugin"

    # my_package/my_plugin.py
    from pallas_debug.hooks import hookimpl

    @hookimpl
    def pallas_debug_compilation_finished(kernel, compilation):
        print(kernel.name, compilation.target, compilation.status)

Floor 1 by its imports: `model` and `errors`. Hooks are called in whatever thread the event
happens in.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, cast

import pluggy

from pallas_debug.errors import PallasDebugError, PluginError
from pallas_debug.guards import problem_of
from pallas_debug.model import (
    Compilation,
    Explanation,
    Finding,
    Kernel,
    PrintRecord,
    Target,
)

GROUP = "pallas_debug"
"""The entry-point group, and pluggy's project name."""

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


class Specs:
    """The hooks, their arguments and what they may return."""

    @hookspec
    def pallas_debug_targets(self) -> Sequence[Target]:  # type: ignore[empty-body]
        """Targets to add to the built-in ones."""

    @hookspec
    def pallas_debug_explanations(self) -> Sequence[Explanation]:  # type: ignore[empty-body]
        """Explanations to add to the catalogue."""

    @hookspec
    def pallas_debug_kernel_captured(self, kernel: Kernel, jaxpr: str, source: str | None) -> None:
        """A kernel was lowered that this session had not seen.

        Args:
          kernel: what it is.
          jaxpr: its jaxpr with source lines.
          source: text of the file that holds the kernel function.
        """

    @hookspec
    def pallas_debug_kernel_used(self, kernel: Kernel) -> None:
        """A program that holds this kernel was run, or lowered ahead of time."""

    @hookspec(firstresult=True)
    def pallas_debug_claim_compilation(
        self, kernel: Kernel, target: Target
    ) -> AbstractContextManager[None] | None:
        """A context that excludes other compilations of this kernel for this target."""

    @hookspec(firstresult=True)
    def pallas_debug_find_compilation(
        self, kernel: Kernel, target: Target, key: str
    ) -> Compilation | None:
        """A compilation made earlier under the same key: nothing is then compiled."""

    @hookspec
    def pallas_debug_compilation_finished(
        self, kernel: Kernel, compilation: Compilation, files: Mapping[str, Any]
    ) -> None:
        """A kernel was compiled, failed to, or was found to have been compiled before.

        Args:
          files: by their path below the target's folder, bytes or a `Path` that is there until
            the hook returns; empty where `compilation.cached`.
        """

    @hookspec
    def pallas_debug_finding(self, finding: Finding) -> None:
        """Something wrong was found with a kernel."""

    @hookspec
    def pallas_debug_print(self, record: PrintRecord) -> None:
        """A kernel printed a line."""


def plugin_manager(*plugins: object) -> pluggy.PluginManager:
    """A manager with our hooks, the plugins of installed distributions, and these."""
    manager = pluggy.PluginManager(GROUP)
    manager.add_hookspecs(Specs)
    manager.load_setuptools_entrypoints(GROUP)
    for plugin in plugins:
        manager.register(plugin)
    return manager


def notify(manager: pluggy.PluginManager, hook: str, **kwargs: Any) -> list[PallasDebugError]:
    """Notify every plugin of an event, even if another one raises.

    Returns:
      What failed, plugin by plugin.
    """
    problems: list[PallasDebugError] = []
    for implementation in _implementations(manager, hook):
        try:
            _call(implementation, kwargs)
        except Exception as error:  # noqa: BLE001 - one plugin's exception is not the next one's
            problems.append(_problem(implementation, hook, error))
    return problems


def first(
    manager: pluggy.PluginManager,
    hook: str,
    report: Callable[[PallasDebugError], object],
    **kwargs: Any,
) -> Any:
    """The first answer that is not None, as of a hook with `firstresult`; None without any.

    A plugin of another distribution that raises is reported and passed over.

    Raises:
      Exception: whatever one of our own plugins raises: without its answer, the work at hand must
        not go on.
    """
    for implementation in _implementations(manager, hook):
        try:
            answer = _call(implementation, kwargs)
        except Exception as error:
            if _is_ours(implementation):
                raise
            report(_problem(implementation, hook, error))
        else:
            if answer is not None:
                return answer
    return None


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
        f"{error}. pallas-debug went on without it; report it to the plugin's authors."
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
    """Explanations that installed distributions add; a plugin that fails is reported."""
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
    """The targets that plugins add."""
    lists = cast(list[Sequence[Target]], manager.hook.pallas_debug_targets())
    return tuple(target for found in lists for target in found)
