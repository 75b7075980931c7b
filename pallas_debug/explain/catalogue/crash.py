"""Crashes of the compiler process."""

from __future__ import annotations

from pallas_debug.defaults import COMPILE_TIMEOUT
from pallas_debug.explain.catalogue.record import JAX, entry

ENTRIES = (
    entry(
        "mask-to-column",
        "layout.h:…Check failed: rem == 0",
        title="the compiler crashes when a row of booleans becomes a column",
        cause="m[:, None] or a reshape of a one-dimensional mask: libtpu 0.0.42 rejects it with "
        "`unsupported shape cast`, 0.0.50 aborts, 0.0.52 rejects it again",
        advice="build the mask in two dimensions with jax.lax.broadcasted_iota, or turn int32 or "
        "float32 values into a column before comparing them",
        versions="libtpu 0.0.50",
        kind="CompilerAbort",
        links=(JAX + "37370",),
    ),
    entry(
        "dump-report-abort",
        "jellyfish/tool_data/vmem_report_header.tmpl",
        title="libtpu aborts after writing its dumps",
        cause="libtpu looks for a report template that is not in the wheel; the bundles are "
        "complete",
        advice="read the dumps that were written, or use a newer libtpu",
        versions="around libtpu 0.0.40, on a TPU host, with --xla_jf_dump_to; without a TPU "
        "0.0.40 and 0.0.42 write them and continue",
    ),
    entry(
        "profile-abort",
        "Static LLO profiling of … failed:",
        title="libtpu aborts while estimating the cycles of a kernel",
        cause="--xla_jf_dump_static_llo_profile_to has no cost for an instruction of this kernel",
        advice="remove that flag: the kernel itself compiles",
        versions="libtpu 0.0.42 and 0.0.50",
    ),
    entry(
        "compiler-segfault",
        "RAW: Raising signal 11",
        "RAW: Raising signal 4",
        "died of SIGSEGV",
        "died of SIGILL",
        kind="CompilerAbort",
        title="the compiler crashed on a bad memory access or instruction",
        cause="a bug in libtpu, triggered by a kernel that it should have rejected, for example "
        "one with a float index or an empty operand in SMEM",
        advice="look at the operations of the last line that the log names; shrink the kernel "
        "until it compiles; then report it",
        ambiguous=True,
        general=True,
    ),
    entry(
        "compiler-check",
        "Check failed:",
        "*** Check failure stack trace: ***",
        kind="CompilerAbort",
        title="a check inside the compiler failed and aborted its process",
        cause="a bug in libtpu: it should have compiled or rejected the kernel",
        advice="the last pass that was dumped shows how far it got; shrink the kernel until it "
        "compiles; then report it. A process that hangs may hold the TPU: kill it",
        links=(JAX + "39366",),
        ambiguous=True,
        general=True,
    ),
    entry(
        "compiler-killed",
        "the system killed it as memory ran out",
        kind="CompilerAbort",
        title="the system killed the compiler, usually because memory ran out",
        cause="a process that has compiled a kernel takes 400 MB, more for large kernels",
        advice="compile with fewer processes: --jobs 1",
    ),
    entry(
        "compiler-timeout",
        "and was stopped; the last pass it wrote is",
        "the compiler was stopped after … s, before it wrote a pass",
        "the compiler was stopped after … s, after it wrote the pass",
        title="the compiler took longer than the time limit",
        cause="the limit is too short for this kernel; or an unrolled loop or a very large block "
        "produces a program with many instructions",
        advice="allow more time with --timeout; or use a lax.fori_loop instead of a Python loop, "
        "and smaller blocks",
    ),
    entry(
        "compiler-timeout-at-start",
        "the compiler was stopped after … s, while it loaded libtpu",
        title="the time limit ended before the compiler had started",
        cause="a new compiler process first loads libtpu, which takes seconds; it had not yet "
        "looked at the kernel",
        advice=f"allow more time with --timeout; the default is {COMPILE_TIMEOUT:g} s",
    ),
)
