"""Other people's kernel tests under the plugin: which pass, and why the others do not.

    python benchmarks/outside.py SUITE CHECKOUT [--modes off,interpret,check,dump] [--per N] [FILE…]

SUITE is jax, tpu-inference, maxtext or tokamax; CHECKOUT is a folder with its source (for jax, the
tag of the installed release). Other packages that a suite imports must be installed or on
PYTHONPATH (tpu-inference needs tokamax's checkout there). Every file runs in its own pytest, which
is started again after a test that hangs or ends the process. Modes:

    off         without the plugin
    interpret   --pallas-interpret -o pallas_pretend=TARGET
    tpu, hlo, machine   the same with that interpret mode
    sanitize    the same with --pallas-sanitize: what does the sanitizer report?
    check       --pallas-check: which tests that pass without the plugin fail with it?
    dump        --pallas-dump: the same question

The table has one row per file; below it, the reasons why tests did not pass, most frequent first.
A test counts as `refused` if the plugin says by name what the interpreters do not support, as
`found` if it reports another finding, and as `n/a` if it cannot pass on a machine without a TPU:
it checks the compiled program, queries the hardware, or uses a package that is not installed
(NOT_APPLICABLE and EXPECTS list which and why). For a test that takes too long, the reason is what
the test was doing, and where. Tests cut off by --limit are `not run`. --timeout is CPU time, within
at most MAX_WAIT times as much wall time, so that other work on the machine has little influence.
Nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent

SETTINGS = "OUTSIDE"
"""Environment variable: JSON for the plugin, see `Suite._attempt`."""

FILES: Mapping[str, Sequence[str]] = {
    "jax": ("tests/pallas/tpu_*_test.py", "tests/pallas/[!gmt]*_test.py"),
    "tpu-inference": ("tests/kernels/**/*_test.py", "tests/kernels/**/test_*.py"),
    "maxtext": (
        "tests/unit/kernels_test.py",
        "tests/unit/pallas_mosaic_tpu_v2_kernel_test.py",
    ),
    "tokamax": (
        "tokamax/_src/ops/**/*tpu*_test.py",
        "tokamax/_src/ops/experimental/tpu/**/*_test.py",
        "tokamax/_src/ops/experimental/gmm_v2/gmm_v2_test.py",
    ),
}
IMPORTS: Mapping[str, Sequence[str]] = {"maxtext": ("src",), "tokamax": (".",)}
"""Folders of a checkout that its tests import from, besides the checkout itself."""

EIGHT_DEVICES: Mapping[str, Sequence[str]] = {
    "jax": ("*distributed*", "*all_gather*", "*sharded*"),
    "tpu-inference": ("*",),
    "tokamax": ("*sharded*", "*ring_attention*"),
}
"""Patterns of files whose tests want several devices; all others run with one."""

_OF_A_TPU = ("--override-ini=pallas_pretend={target}",)
OPTIONS: Mapping[str, Sequence[str]] = {
    "off": ("-p", "no:pallas_debug_pytest"),
    "interpret": ("--pallas-interpret", *_OF_A_TPU),
    "hlo": ("--pallas-interpret=hlo", *_OF_A_TPU),
    "tpu": ("--pallas-interpret=tpu", *_OF_A_TPU),
    "machine": ("--pallas-interpret=machine", *_OF_A_TPU),
    "sanitize": ("--pallas-sanitize", *_OF_A_TPU),
    "check": ("--pallas-check",),
    "dump": ("--pallas-dump={folder}", "--pallas-target={target}"),
}
KEYWORDS: Mapping[tuple[str, str], str] = {
    ("jax", mode): "not Interpret" for mode in ("interpret", "hlo", "tpu", "machine", "sanitize")
}
"""Value of pytest's `-k`: jax's classes for its own interpreters need no option of ours."""

ORDER = (
    "passed",
    "refused",
    "found",
    "failed",
    "timed out",
    "crashed",
    "not run",
    "n/a",
    "skipped",
)

NOT_APPLICABLE: Mapping[str, str] = {
    "test_cost_analysis": "reads the compiler's cost analysis",
    "test_kernel_with_output_memory_space": "reads the compiled program",
    "test_allow_input_fusion": "reads the compiled program",
    "test_megacore_splitting": "reads the compiled program",
    "PallasCallTraceTest": "reads the trace of a profiler",
    "test_poison_buffers": "observes the memory of a chip",
    "test_trace_start_stop_match": "reads the compiled program",
    "test_two_input_vadd": "reads the compiled program",
    "test_side_effecting_dce": "reads the compiled program",
    "test_vmem_oom_error_message": "expects the TPU compiler to refuse the kernel",
    "test_parallel_subkernels_semaphores_missing": "expects the TPU compiler to refuse the kernel",
    "sparsecore_availability_check": "expects the TPU compiler to refuse the kernel",
    "PinnedBufferTest": "pins a buffer outside of kernels",
    "test_sequential_collectives_auto_allocated_ids": "reads the compiled program",
}
"""Patterns of test ids, and why such a test cannot pass without the compiler or a chip."""

EXPECTS: Mapping[str, str] = {
    r"(AssertionError: )+\w+ not raised": "expects the TPU compiler to refuse the kernel",
    r'(AssertionError: )+".*" does not match ""': "expects the TPU compiler to refuse the kernel",
    r"ValueError: Function '.*' was exported for platforms": "runs a program exported for a TPU",
    r"(?s).*not found in .{0,20}(HloModule|#loc|module @|Jaxpr)": "reads the compiled program",
    r"AssertionError: 'scf.for' not found in ''": "reads the compiled program",
    r"(DeprecationWarning: )+jax\.experimental\.pallas\.": "calls what this jax has deprecated",
    r"(\w+Error: )+.*\b_Absent\b": "uses a package that is replaced by a stub (PyTorch, vLLM)",
}
"""Patterns of failures of the same kind."""


STACK = "stack"
"""File in which a test leaves the stack of its main thread when asked."""

DOING = {
    "pallas_debug/machine/": "the kernel machine runs a kernel",
    "pallas_debug/bridge/interpret/": "an interpreter runs a kernel",
    "jax/_src/compiler.py": "XLA compiles",
    "jax/_src/interpreters/partial_eval.py": "jax traces",
    "jax/_src/interpreters/mlir.py": "jax lowers",
    "jax/_src/": "jax evaluates",
}
"""Activities of a process, by a part of the path of the innermost frame that has one."""

MAX_WAIT = 4
"""Multiple of `--timeout` after which a test is ended even if it had little CPU time."""


@dataclass
class Outcome:
    """Outcome of one test.

    Attributes:
      name: one of ORDER.
      reason: one line; empty for a test that passed.
      seconds: wall time of its call.
    """

    name: str
    reason: str = ""
    seconds: float = 0.0


@dataclass
class Suite:
    name: str
    checkout: Path
    per: int
    timeout: float
    target: str
    limit: float = math.inf
    """Seconds per file and mode."""
    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)
    """Outcomes by mode, then by test id."""

    def files(self, patterns: Sequence[str]) -> list[str]:
        found = {
            str(path.relative_to(self.checkout))
            for pattern in FILES[self.name]
            for path in self.checkout.glob(pattern)
        }
        if patterns:
            found = {
                name for name in found if any(fnmatch.fnmatch(name, f"*{p}*") for p in patterns)
            }
        return sorted(found)

    def run(self, file: str, mode: str) -> dict[str, Outcome]:
        """Run one file's tests in a mode, in as many processes as it takes."""
        outcomes: dict[str, Outcome] = {}
        end = time.monotonic() + self.limit
        remaining: list[str] = []
        while time.monotonic() < end:
            with tempfile.TemporaryDirectory() as folder:
                remaining = self._attempt(file, mode, Path(folder), outcomes, end)
            if not remaining:
                break
        reason = f"the file took more than {self.limit:g} s"
        return outcomes | dict.fromkeys(remaining, Outcome("not run", reason))

    def _attempt(
        self, file: str, mode: str, folder: Path, outcomes: dict[str, Outcome], end: float
    ) -> list[str]:
        """Start pytest on the tests without an outcome; return those left for another start."""
        results = folder / "results.jsonl"
        results.touch()
        settings = {
            "suite": self.name,
            "checkout": str(self.checkout),
            "results": str(results),
            "per": self.per,
            "done": sorted(outcomes),
            "pretends": any("pallas_pretend" in option for option in OPTIONS[mode]),
        }
        options = [
            part.format(target=self.target, folder=folder / "dumps") for part in OPTIONS[mode]
        ]
        imports = [HERE, self.checkout, *(self.checkout / p for p in IMPORTS.get(self.name, ()))]
        environment = {
            **os.environ,
            "XLA_FLAGS": self._xla_flags(file),
            SETTINGS: json.dumps(settings),
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join([*map(str, imports), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-m", "pytest", "-q", "-p", "outside_plugin", *options]
        # Names of tests begin at the checkout, also if a folder below has a pyproject.toml.
        command += [f"--rootdir={self.checkout}"]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", file]
        command += ["-k", KEYWORDS.get((self.name, mode), "")]
        with (folder / "output").open("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=self.checkout,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            is_stalled = self._is_stalled(process, results, end)
            where = _where(process, folder / STACK, self.checkout) if is_stalled else ""
            _kill(process)
            output.seek(0)
            printed = output.read()
        lines = [json.loads(line) for line in results.read_text().splitlines()]
        collected = next((line["collected"] for line in lines if "collected" in line), None)
        for line in lines:
            if "test" in line:
                outcomes[line["test"]] = _outcome(line)
        if collected is None:
            if not any("test" in line for line in lines):
                messages = [line for line in printed.splitlines() if line.strip()]
                outcomes[file] = Outcome(
                    "crashed", f"not collected: {(messages or ['no output'])[-1]}"
                )
            return []
        started = [line["started"] for line in lines if "started" in line]
        if started and started[-1] not in outcomes and time.monotonic() < end:
            outcomes[started[-1]] = (
                Outcome("timed out", f"no result after {self.timeout:g} s{where}", self.timeout)
                if is_stalled
                else Outcome("crashed", f"the process ended: {_last_words(printed)}")
            )
        return [test for test in collected if test not in outcomes] if started else []

    def _xla_flags(self, file: str) -> str:
        flags = os.environ.get("XLA_FLAGS", "").split()
        if any(fnmatch.fnmatch(file, pattern) for pattern in EIGHT_DEVICES.get(self.name, ())):
            flags.append("--xla_force_host_platform_device_count=8")
        return " ".join(flags)

    def _is_stalled(self, process: subprocess.Popen[bytes], results: Path, end: float) -> bool:
        """Wait until the process ends, or has written nothing for too long, or until the end."""
        size, since, cpu = -1, time.monotonic(), 0.0
        while True:
            try:
                process.wait(timeout=1.0)
            except subprocess.TimeoutExpired:
                pass
            else:
                return False
            if time.monotonic() > end:
                return False
            now = results.stat().st_size
            if now != size:
                size, since, cpu = now, time.monotonic(), _cpu_seconds(process)
                continue
            # Collection imports jax and the suite, once per process.
            limit = self.timeout + (60.0 if size == 0 else 0.0)
            waited = time.monotonic() - since
            if waited > MAX_WAIT * limit or (
                waited > limit and not 0.0 <= _cpu_seconds(process) - cpu < limit
            ):
                return True


def _cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """CPU time of a process so far; negative where the platform does not tell."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return -math.inf


def _where(process: subprocess.Popen[bytes], stack: Path, checkout: Path) -> str:
    """Say what a process is doing, from the stack of its main thread: whose code, for which line.

    Waits a second for the stack, which the plugin writes on SIGUSR1.
    """
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGUSR1)
    time.sleep(1.0)
    with contextlib.suppress(OSError):
        return activity(stack.read_text(), checkout)
    return ""


def activity(stack: str, checkout: Path) -> str:
    """Describe a stack as faulthandler prints it; empty if there is no line of the checkout."""
    thread = next((part for part in stack.split("\n\n") if "Current thread" in part), "")
    frames = re.findall(r'File "([^"]+)", line (\d+) in (\S+)', thread or stack)
    files = [file for file, _, _ in frames]
    line = next(
        (
            f"{Path(file).relative_to(checkout)}:{number} in {function}"
            for file, number, function in frames
            if Path(file).is_relative_to(checkout) and "site-packages" not in file
        ),
        None,
    )
    if line is None:
        return ""
    doing = next((words for part, words in DOING.items() if any(part in f for f in files)), "runs")
    return f"; {doing}, called at {line}"


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_words(printed: str) -> str:
    """The line of a dead process's output that says why, if there is one."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"Check fail|Fatal|signal|Abort|F\d{4} ", line)]
    return (telling or lines or ["no output"])[-1][:200]


_FINDING = re.compile(r"^(?:[\w.]+: )?(?=([A-Z]\w+) in kernel `)")
_KIND = re.compile(r"^([A-Z]\w+)\b", re.MULTILINE)


def _outcome(line: Mapping[str, object]) -> Outcome:
    name, test = str(line["outcome"]), str(line["test"])
    text = str(line.get("text", ""))
    ours = _FINDING.sub("", text, count=1) if _FINDING.match(text) else str(line.get("ours", ""))
    seconds = float(str(line.get("seconds", 0.0)))
    if name in ("passed", "skipped"):
        return Outcome(name, _first(text), seconds)
    for pattern, why in NOT_APPLICABLE.items():
        if fnmatch.fnmatch(test, f"*{pattern}*"):
            return Outcome("n/a", why, seconds)
    if name == "not collected":
        return Outcome("crashed", f"not collected: {_first(text)}")
    kinds = _KIND.findall(ours)
    first = _first(ours) if kinds else _first(text)
    for pattern, why in EXPECTS.items():
        if not kinds and re.match(pattern, text):
            return Outcome("n/a", why, seconds)
    if "cannot be interpreted: " in first:
        return Outcome("refused", first, seconds)
    if kinds:
        return Outcome("found", first, seconds)
    kind = str(line.get("kind", "")).removeprefix("builtins.")
    if kind.endswith("JaxAssertionError"):
        return Outcome("refused", _first(text), seconds)
    if "MachineError: " in text or kind.endswith("MachineError"):
        *_, message = text.split("MachineError: ")
        return Outcome("refused", _first(message), seconds)
    return Outcome("failed", _numbers(text) or f"{kind}: {_first(text)}", seconds)


_TOLERANCE = re.compile(
    r"Not equal to tolerance (?P<tolerance>[^\n]+)[\s\S]*?"
    r"Mismatched elements: (?P<count>\d+) / (?P<of>\d+)[\s\S]*?"
    r"Max absolute difference[^:]*: (?P<most>\S+)\s+Max relative difference[^:]*: (?P<part>\S+)"
)
"""numpy's message about results that differ."""


def _numbers(text: str) -> str:
    """Reason of a test that compares results: by how much they leave its tolerance."""
    found = _TOLERANCE.search(text)
    if found is None:
        return ""
    return (
        f"tolerance {found['tolerance']}: {found['count']} of {found['of']} elements differ, by at "
        f"most {found['most']}, {found['part']} of the value"
    )


def _first(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:200]


def table(suite: Suite, files: Sequence[str], modes: Sequence[str]) -> Iterator[str]:
    """Lines of Markdown: one row per file and mode, and the sum."""
    yield "| file | mode | tests | " + " | ".join(ORDER) + " | of those that apply |"
    yield "|---" * (len(ORDER) + 4) + "|"
    for mode in modes:
        rows = {file: _in(suite.outcomes[mode], file) for file in files}
        for file, outcomes in [*rows.items(), ("in all", list(suite.outcomes[mode].values()))]:
            counts = Counter(outcome.name for outcome in outcomes)
            ran = sum(counts.values()) - counts["skipped"] - counts["n/a"]
            ran -= counts["not run"]
            share = f"{100 * counts['passed'] / ran:.0f} %" if ran else "–"
            cells = " | ".join(str(counts[name] or "") for name in ORDER)
            yield f"| {file} | {mode} | {sum(counts.values())} | {cells} | {share} |"


def _in(outcomes: Mapping[str, Outcome], file: str) -> list[Outcome]:
    return [outcome for test, outcome in outcomes.items() if test.partition("::")[0] == file]


def reasons(outcomes: Iterable[Outcome], most: int) -> Iterator[str]:
    """Why tests did not pass, most frequent first; reasons differing only in digits are merged."""
    counts: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for outcome in outcomes:
        if outcome.name != "passed":
            key = (outcome.name, re.sub(r"\d+", "N", outcome.reason))
            counts[key] += 1
            examples.setdefault(key, outcome.reason)
    for key, count in counts.most_common(most):
        yield f"{count:5d}  {key[0]:<9}  {examples[key]}"
    if len(counts) > most:
        yield f"       … and {len(counts) - most} more reasons"


def turned_red(suite: Suite, mode: str) -> Iterator[str]:
    """Tests that pass without the plugin and fail in a mode, with the reason."""
    for test, outcome in suite.outcomes[mode].items():
        before = suite.outcomes["off"].get(test)
        if before and before.name == "passed" and outcome.name not in ("passed", "not run"):
            yield f"{test}: {outcome.name}: {outcome.reason}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", choices=FILES)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("file", nargs="*", help="only files whose path contains this")
    parser.add_argument("--modes", default="interpret", help="default: %(default)s")
    parser.add_argument("--per", type=int, default=0, help="parameter sets per test; default: all")
    parser.add_argument("--timeout", type=float, default=120.0, help="CPU seconds per test")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds per file and mode")
    parser.add_argument("--target", default="v6e", help="default: %(default)s")
    parser.add_argument("--reasons", type=int, default=30, help="lines; default: %(default)s")
    parser.add_argument("--json", type=Path, help="also write every outcome to this file")
    options = parser.parse_intermixed_args()
    modes = options.modes.split(",")
    unknown = [mode for mode in modes if mode not in OPTIONS]
    if unknown:
        parser.error(f"unknown mode {unknown[0]!r}; the modes are {', '.join(OPTIONS)}")
    suite = Suite(
        options.suite,
        options.checkout.resolve(),
        options.per,
        options.timeout,
        options.target,
        options.limit,
    )
    files = suite.files(options.file)
    if not files:
        parser.error(f"{options.checkout} has no {' or '.join(FILES[options.suite])}")
    for mode in modes:
        found = suite.outcomes[mode] = {}
        for file in files:
            start = time.monotonic()
            outcomes = suite.run(file, mode)
            found.update(outcomes)
            counts = Counter(outcome.name for outcome in outcomes.values())
            message = ", ".join(f"{counts[name]} {name}" for name in ORDER if counts[name])
            print(f"{mode}: {file}: {message} ({time.monotonic() - start:.0f} s)", file=sys.stderr)
            if options.json:
                _save(options.json, suite)
    print(*table(suite, files, modes), sep="\n")
    for mode in modes:
        print(f"\n{mode}: why tests did not pass")
        print(*reasons(suite.outcomes[mode].values(), options.reasons), sep="\n")
        if mode != "off" and "off" in modes:
            red = list(turned_red(suite, mode))
            print(f"\n{mode}: {len(red)} tests pass without the plugin and not with it")
            print(*red, sep="\n")


def _save(path: Path, suite: Suite) -> None:
    everything = {
        mode: {test: vars(outcome) for test, outcome in outcomes.items()}
        for mode, outcomes in suite.outcomes.items()
    }
    path.write_text(json.dumps(everything, indent=1))


if __name__ == "__main__":
    main()
