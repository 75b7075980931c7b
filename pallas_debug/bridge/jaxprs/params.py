"""Access to parameters of a kernel's equation that differ between primitives or jax versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def jaxprs_of(params: Mapping[str, Any]) -> tuple[Any, ...]:
    """Bodies of a kernel: one for `pallas_call`, several for `mpmd_map`."""
    return (params["jaxpr"],) if "jaxpr" in params else tuple(params["jaxprs"])


def name_of(params: Mapping[str, Any]) -> str:
    """jax's name for the kernel."""
    return str(params.get("name") or jaxprs_of(params)[0].debug_info.func_name)


def plain(jaxpr: Any) -> Any:
    """Unwrap a closed jaxpr, which up to jax 0.11 is a pair of a jaxpr and its constants."""
    return getattr(jaxpr, "jaxpr", jaxpr)
