"""Parameters of a kernel's equation that jax spells in more than one way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def jaxprs_of(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The bodies of a kernel: one of `pallas_call`, several of `mpmd_map`."""
    return (params["jaxpr"],) if "jaxpr" in params else tuple(params["jaxprs"])


def name_of(params: Mapping[str, Any]) -> str:
    """What jax calls the kernel."""
    return str(params.get("name") or jaxprs_of(params)[0].debug_info.func_name)


def plain(jaxpr: Any) -> Any:
    """The jaxpr itself; up to jax 0.11 a closed one is a pair of it and its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)
