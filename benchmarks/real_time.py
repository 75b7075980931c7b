"""Estimated run times of kernels against those measured on a TPU v6e, for JAXBench's kernels.

    python benchmarks/real_time.py CHECKOUT [--to dumps] [--calibrate] [--page page.md]

CHECKOUT is a folder with the source of https://github.com/aryatschand/JAXBench, which holds Pallas
kernels that two language models wrote, and the time of each on a v6e. Kernels are compiled for v6e
with the shapes of the benchmark; with `--to`, the dumps are kept, and used by the next run. Only
functions that consist of kernels are compared: XLA's operations around the kernels would have to
read and write less than `REST` of the measured time allows, and multiply no matrices.

Measured times include one call of a jitted function, for which `LAUNCH` is added to the estimates.
The copy model behind the estimates (`calibration` in `chips.py`) is calibrated on the
functions of `gpt53` alone, so those of `gemini3` show how well it predicts. `--calibrate` prints
the error on `gpt53` over a grid of parameters.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu
from scipy.stats import spearmanr

import pallas_debug
from pallas_debug.chips import CHIPS
from pallas_debug.errors import PallasDebugError
from pallas_debug.profile.core.copies import copy_model
from pallas_debug.profile.core.given import given_scalars
from pallas_debug.profile.core.walk import walk
from pallas_debug.profile.stats import Profile
from pallas_debug.store import open_dumps
from pallas_debug.store.profiles import read_profile

TARGET = "v6e"
LAUNCH = 0.12
"""Milliseconds of a call apart from its kernels, calibrated on `gpt53` as well."""
REST = 0.1
CALIBRATED_ON, TESTED_ON = "gpt53", "gemini3"
LEFT_OUT: Mapping[tuple[str, str], str] = {
    ("gpt53", "40_Matmul_Scaling_ResidualAdd"): "its copies would exceed the bandwidth of HBM by "
    "44 %: XLA placed an operand in VMEM",
}

_FREE = ("reshape", "broadcast_in_dim", "squeeze", "iota")
_PRODUCTS = ("dot_general", "conv_general_dilated")


@dataclass(frozen=True, kw_only=True)
class Row:
    """A function of the benchmark.

    Attributes:
      measured: milliseconds on a v6e.
      deviation: standard deviation of the measured times, in milliseconds.
    """

    model: str
    name: str
    measured: float
    deviation: float
    profiles: tuple[Profile, ...]

    @property
    def cycles(self) -> float:
        """Milliseconds of the estimate that agrees with libtpu's, at the published clock."""
        total = sum(profile.cycles.total.value or math.nan for profile in self.profiles)
        return 1e3 * total / CHIPS[TARGET].clock + LAUNCH

    @property
    def time(self) -> float:
        return sum(profile.cycles.time.value or math.nan for profile in self.profiles) + LAUNCH

    @property
    def steps(self) -> float:
        return sum(profile.cycles.steps.value or 0 for profile in self.profiles)


class Unsuitable(Exception):
    """A function whose measured time is not that of its kernels."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--to", type=Path, help="keep the dumps in this folder")
    parser.add_argument("--calibrate", action="store_true", help="try other parameters")
    parser.add_argument("--page", type=Path, help="write docs/reference/real-time.md")
    options = parser.parse_args()
    if not hasattr(pltpu, "repeat"):  # jax 0.10 replaced it, and some kernels use it
        pltpu.repeat = lambda x, n, axis: jnp.concatenate([x] * n, axis)
    with tempfile.TemporaryDirectory() as folder:
        rows, reasons = _rows(options.checkout, options.to or Path(folder))
        for name, reason in sorted(reasons.items()):
            print(f"left out: {name}: {reason}")
        print("\n".join([*_table(rows), "", *_summary(rows)]))
        if options.calibrate:
            for line in _calibration([row for row in rows if row.model == CALIBRATED_ON]):
                print(line, flush=True)
        if options.page:
            options.page.write_text(_page(rows, len(reasons)))


def _rows(checkout: Path, to: Path) -> tuple[list[Row], dict[str, str]]:
    rows: list[Row] = []
    reasons: dict[str, str] = {}
    for model, result in _results(checkout):
        title = f"{model} {result['name']}"
        if (model, result["name"]) in LEFT_OUT:
            reasons[title] = LEFT_OUT[model, result["name"]]
            continue
        try:
            profiles = _profiles(checkout, model, result, to)
        except (PallasDebugError, Unsuitable) as error:
            reasons[title] = str(error).split("\n", 1)[0]
            continue
        except Exception as error:  # noqa: BLE001  code that a language model wrote
            reasons[title] = f"{type(error).__name__}: {error}".split("\n", 1)[0]
            continue
        row = Row(
            model=model,
            name=result["name"],
            measured=result["generated_ms"],
            deviation=result["generated_std_ms"],
            profiles=profiles,
        )
        if math.isnan(row.time):
            reasons[title] = profiles[0].cycles.time.note
        else:
            rows.append(row)
    return rows, reasons


def _results(checkout: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for model in (CALIBRATED_ON, TESTED_ON):
        text = (checkout / "pallas_eval" / "results" / f"eval_{model}.json").read_text()
        for result in json.loads(text)["results"]:
            if result.get("generated_ms"):
                yield model, result


def _profiles(
    checkout: Path, model: str, result: Mapping[str, Any], to: Path
) -> tuple[Profile, ...]:
    """Compile the kernels of a function.

    Raises:
      Unsuitable: the function does not consist of kernels.
    """
    function, args = _function(checkout, model, result)
    rest = _rest(jax.make_jaxpr(function)(*args).jaxpr)
    share = 1e3 * rest / CHIPS[TARGET].bandwidth / result["generated_ms"]
    if share > REST:
        raise Unsuitable("much of its time is XLA's" if math.isfinite(share) else "XLA multiplies")
    folder = to / f"{model}-{result['name']}"
    if not folder.exists():
        pallas_debug.dump(function, *args, targets=(TARGET,), to=folder, stages="bundles")
    found = []
    for stored in open_dumps(folder).kernels():
        profile = read_profile(stored, stored.target(TARGET))
        if profile is None:
            raise Unsuitable(f"{stored.name} does not compile")
        found.append(profile.profile)
    if not found:
        raise Unsuitable("it calls no kernel")
    return tuple(found)


def _function(checkout: Path, model: str, result: Mapping[str, Any]) -> tuple[Any, Any]:
    name, suite = result["name"], result["suite"]
    generated = checkout / "pallas_eval" / "generated" / model
    if suite == "jaxkernelbench":
        (original,) = (checkout / suite).rglob(f"{result['level']}/**/{name}.py")
        given = _load(original)
        written = _load(generated / f"{suite}_{result['level']}" / f"{name}.py")
        return written.Model(*given.get_init_inputs()).forward, jax.eval_shape(given.get_inputs)
    original = next(
        path
        for path in (checkout / suite).rglob("*.py")
        if name in (path.stem, path.parent.name) and "def create_inputs" in path.read_text()
    )
    written = _load(generated / suite / f"{name}.py")
    return written.workload, jax.eval_shape(_load(original).create_inputs)


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{path.parent.name}_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _rest(jaxpr: Any) -> float:
    """Bytes that operations around the kernels read and write, unfused; infinite for products."""
    total = 0.0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        inner = [value for value in eqn.params.values() if hasattr(value, "eqns")]
        inner += [v.jaxpr for v in eqn.params.values() if hasattr(getattr(v, "jaxpr", 0), "eqns")]
        if name == "pallas_call" or name in _FREE:
            continue
        if name in _PRODUCTS:
            return math.inf
        if inner and name in ("pjit", "jit", "custom_jvp_call", "custom_vjp_call"):
            total += sum(map(_rest, inner))
        else:
            total += sum(_bytes(atom.aval) for atom in (*eqn.invars, *eqn.outvars))
    return total


def _bytes(aval: Any) -> int:
    return math.prod(aval.shape) * getattr(aval.dtype, "itemsize", 0)


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| kernels of | function | grid steps | measured ms | time ms | ratio | from cycles |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for row in rows:
        yield (
            f"| {row.model} | {row.name.strip('_')} | {row.steps:,} | {row.measured:.2f} "
            f"± {row.deviation:.2f} | {row.time:.2f} | {row.time / row.measured:.2f} "
            f"| {row.cycles / row.measured:.2f} |"
        )


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    for model, role in ((CALIBRATED_ON, "calibrated on these"), (TESTED_ON, "not calibrated on")):
        chosen = [row for row in rows if row.model == model]
        measured = [row.measured for row in chosen]
        ratio = statistics.median(row.time / row.measured for row in chosen)
        before = statistics.median(row.cycles / row.measured for row in chosen)
        rank = spearmanr(measured, [row.time for row in chosen]).statistic
        yield (
            f"- `{model}` ({role}): {len(chosen)} functions, median ratio {ratio:.2f} "
            f"({before:.2f} without the calibration), rank correlation {rank:.3f}"
        )


def _calibration(rows: Sequence[Row]) -> Iterator[str]:
    schedules = []
    for row in rows:
        kernels = []
        for profile in row.profiles:
            scalars = profile.blocks.scalars if profile.blocks is not None else ()
            schedule = profile.schedule
            kernels.append((schedule, given_scalars(schedule, scalars)))
        schedules.append((row.measured, kernels))
    for start, latency, bandwidth in itertools.product(
        (0, 140, 180, 220), (1.0, 1.5, 1.75, 2.0), (0.82, 0.85, 1.0)
    ):
        model = copy_model(TARGET)[0].scaled(latency=latency, bandwidth=bandwidth, start=start)
        times = [
            1e3
            / CHIPS[TARGET].clock
            * sum(walk(s, model, given=g, budget=20_000).cycles for s, g in kernels)
            for _, kernels in schedules
        ]
        for launch in (0.1, 0.12, 0.15):
            errors = [
                abs(math.log((time + launch) / measured))
                for time, (measured, _) in zip(times, schedules, strict=True)
            ]
            yield (
                f"start {start}, latency × {latency}, bandwidth × {bandwidth}, launch {launch}: "
                f"mean error {statistics.mean(errors):.3f}"
            )


def _page(rows: Sequence[Row], left_out: int) -> str:
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("jax", "libtpu"))
    lines = [
        "# Estimated and measured times",
        "",
        "`pallas-debug stats` estimates the time of a kernel on a v6e. This table compares it with "
        "times that others measured: those of [JAXBench](https://github.com/aryatschand/JAXBench) "
        "(`pallas_eval/results`, read in November 2026), for Pallas kernels that two language "
        f"models wrote. The kernels were compiled here with {versions}.",
        "",
        *_summary(rows),
        "",
        "The cost of starting a copy, its latency and the bandwidth of HBM are calibrated on "
        f"`{CALIBRATED_ON}` alone, as are the {LAUNCH} ms of a call that are included in each "
        "estimate below.",
        "",
        *_table(rows),
        "",
        "What it does not show:",
        "",
        f"- {left_out} further functions with a measured time are left out: mostly, operations of "
        "XLA around the kernels take much of their time, or convolutions.",
        "- The versions of jax and libtpu with which the times were measured are not known.",
        "- Operands that XLA places in VMEM are not copied from HBM; the estimate does not know "
        "them unless the dump says so.",
        "- Other chips: no such times are published for them, so `stats` gives cycles only.",
        "",
        "Made by `benchmarks/real_time.py`.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
