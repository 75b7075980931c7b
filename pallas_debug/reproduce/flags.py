"""Libtpu flags that a script may set: a closed list of switches and numbers.

A dump records its libtpu flags, and a flag can name any directory to write to. So a script sets
only the flags listed here; the script's header and the command name the omitted ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_BOOL = re.compile(r"|true|false|0|1", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]{1,12}(?:\.[0-9]{1,12})?")

KNOWN: Mapping[str, re.Pattern[str]] = {
    **dict.fromkeys(
        (
            "xla_enable_async_all_gather",
            "xla_enable_async_all_reduce",
            "xla_enable_async_collective_permute",
            "xla_enable_transpose_trace",
            "xla_jf_poison_vmem_allocations",
            "xla_mosaic_enable_dump_debug_info",
            "xla_mosaic_enable_llo_source_annotations",
            "xla_tpu_data_parallel_opt_different_sized_ops",
            "xla_tpu_enable_all_experimental_scheduler_features",
            "xla_tpu_enable_async_collective_fusion",
            "xla_tpu_enable_async_collective_fusion_fuse_all_gather",
            "xla_tpu_enable_async_collective_fusion_multiple_steps",
            "xla_tpu_enable_data_parallel_all_reduce_opt",
            "xla_tpu_enable_latency_hiding_scheduler",
            "xla_tpu_enable_log_recorder",
            "xla_tpu_force_lp_llo_scheduler",
            "xla_tpu_megacore_fusion_allow_ags",
            "xla_tpu_overlap_compute_collective_tc",
            "xla_tpu_spmd_rng_bit_generator_unsafe",
            "xla_tpu_use_enhanced_launch_barrier",
        ),
        _BOOL,
    ),
    **dict.fromkeys(
        (
            "xla_jf_spmd_threshold_for_windowed_einsum_mib",
            "xla_latency_hiding_scheduler_rerun",
            "xla_tpu_scoped_vmem_limit_kib",
        ),
        _NUMBER,
    ),
    "xla_mosaic_on_device_checks": re.compile(r"|bounds"),
}
"""Pattern for the value of each flag; none matches a path."""


@dataclass(frozen=True, kw_only=True)
class ChosenFlags:
    """Flags that a script sets, and the names of those that it omits."""

    kept: tuple[str, ...]
    left_out: tuple[str, ...]


def chosen(flags: Iterable[str]) -> ChosenFlags:
    """Select the known flags of a dump, each as `--name=value`.

    Args:
      flags: strings as libtpu takes them: `--flag=value`, `--flag value`, `--flag`, or with one
        dash.
    """
    kept, left_out = [], []
    words = [word for flag in flags for word in flag.split()]
    at = 0
    while at < len(words):
        name, equals, value = words[at].lstrip("-").partition("=")
        has_dash = words[at].startswith("-")
        at += 1
        if has_dash and not equals and at < len(words) and not words[at].startswith("-"):
            value, at = words[at], at + 1
        if has_dash and is_known(name, value):
            kept.append(f"--{name}={value}" if value else f"--{name}")
        else:
            left_out.append(name)
    return ChosenFlags(kept=tuple(kept), left_out=tuple(dict.fromkeys(left_out)))


def is_known(name: str, value: str) -> bool:
    """Return whether a flag is listed and its value allowed."""
    values = KNOWN.get(name)
    return values is not None and values.fullmatch(value) is not None
