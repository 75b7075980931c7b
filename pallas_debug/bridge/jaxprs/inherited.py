"""Lines for equations that have none of the user's, such as those of jax's own pipelines.

jax forgets the frames around a jaxpr within another one. An equation within inherits the line of
the equation around it, or of the one before it in a kernel.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pallas_debug.bridge.jaxcompat import source_info_util
from pallas_debug.bridge.jaxprs import nested


def with_lines(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a kernel, in which each equation has a line if any has one."""
    return nested.edited(params, lambda jaxpr: _with_lines(jaxpr, None))


def _with_lines(jaxpr: Any, outer: Any) -> Any:
    """Return a jaxpr with lines; `outer` is the traceback to use for equations without one."""
    sources = [eqn.source_info.traceback for eqn in jaxpr.eqns]
    known = outer or next(filter(_has_line, sources), None)
    made = []
    for eqn, source in zip(jaxpr.eqns, sources, strict=True):
        known = source if _has_line(source) and outer is None else known
        traceback = source if _has_line(source) else known

        def within(inner: Any, traceback: Any = traceback) -> Any:
            return _with_lines(inner, traceback)

        made.append(
            eqn.replace(
                source_info=eqn.source_info.replace(traceback=traceback),
                params=nested.edited(eqn.params, within),
            )
        )
    return jaxpr.replace(eqns=made)


def _has_line(traceback: Any) -> bool:
    return traceback is not None and any(True for _ in source_info_util.user_frames(traceback))
