"""Construction of the subject of advice rules from a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pallas_debug.profile.advice.subject import AdviceSubject, StepCost
from pallas_debug.profile.core.copies import copy_model

if TYPE_CHECKING:
    from pallas_debug.profile.stats import Profile


def subject_of(profile: Profile) -> AdviceSubject | None:
    """Collect the input of the advice rules; None without a kernel or bundles."""
    if profile.kernel is None or not profile.schedule.bundles:
        return None
    model, _ = copy_model(profile.schedule.chip)
    vmem, limit = profile.memory.vmem.value, profile.memory.limit.value
    return AdviceSubject(
        kernel=profile.kernel,
        schedule=profile.schedule,
        tracing=profile.tracing,
        mosaic=profile.mosaic,
        executions=profile.cycles.executions,
        cycles=profile.cycles.total.value,
        step=_step(profile),
        cores=_cores(profile),
        blocks=profile.blocks,
        resident=frozenset(profile.traffic.resident),
        bytes_per_cycle=model.bandwidth[model.default],
        latency=model.latency[model.default],
        write_latency=model.time("vmem_to_hbm", 0)[0],
        depends_on_data=profile.cycles.least != profile.cycles.total,
        vmem=int(vmem) if vmem is not None else None,
        vmem_limit=int(limit) if limit is not None else None,
    )


def _cores(profile: Profile) -> float:
    steps, own = profile.cycles.steps.value, profile.cycles.core_steps.value
    return steps / own if steps and own else 1.0


def _step(profile: Profile) -> StepCost | None:
    """Return the cost of a grid step; None if a trip count or the size of a copy is unknown."""
    compute = profile.traffic.compute_per_step.value
    copies = profile.traffic.copies_per_step.value
    if compute is None or copies is None:
        return None
    return StepCost(compute=float(compute), copies=float(copies))
