"""Runtime errors of kernels: bounds, blocks, copies, semaphores, halts."""

from __future__ import annotations

from pallas_debug.findings.explain.catalogue.record import ERRORS, JAX, PALLAS, entry

HALT = ERRORS + "0200"

ENTRIES = (
    entry(
        "out-of-bounds",
        "Out-of-bounds read of",
        "Out-of-bounds write of",
        "Out-of-bounds swap of",
        "Out-of-bounds masked swap of",
        "is (at least partially) out of bounds for",
        title="a load, store or copy goes past the ends of what it indexes",
        cause="HLO interpret mode silently moves such a slice inside; a TPU reads or writes "
        "whatever is there",
        advice="bound the start by the size less the length of the slice, or pad the array; an "
        "index below 0 does not count from the end",
        kinds=("OutOfBoundsRead", "OutOfBoundsWrite"),
        links=(PALLAS + "tpu/details.html", JAX + "30259"),
    ),
    entry(
        "block-out-of-bounds",
        "Out-of-bounds block index",
        title="an index map names a block that the array does not have",
        cause="an index map counts blocks, not elements; or it takes the block from a scalar "
        "prefetch table with wrong entries",
        advice="return the number of the block (divide by the block's size), clamp it, or check "
        "the table before the call",
        kinds=("BlockOutOfBounds",),
        links=(PALLAS + "grid_blockspec.html", JAX + "31395", JAX + "23181"),
    ),
    entry(
        "output-revisited",
        "Revisited block",
        title="an output block is visited again after another one",
        cause="an output block is written back when the next one begins, and is not read back: "
        "what was summed in it before is lost",
        advice="put the grid axes over which the output block stays the same last",
        kinds=("OutputRevisited",),
        links=(PALLAS + "grid_blockspec.html", JAX + "30581"),
    ),
    entry(
        "data-race",
        "RACE DETECTED",
        title="two accesses of the same memory, at least one a write, that nothing orders",
        cause="a copy is still in flight while its buffer is read or written, or two cores write "
        "one block",
        advice="wait for the copy before the line on the other side; give parallel grid points "
        "blocks of their own",
        versions="jax 0.10 prints it and continues, jax 0.12 raises",
        kinds=("DataRace",),
    ),
    entry(
        "parallel-prefix",
        "Dimensions with parallel semantics must form a prefix of the grid",
        title="a parallel axis follows one that is not parallel",
        cause="TPU interpret mode spreads only the leading axes over its cores",
        advice="put the parallel axes first, or run with one core",
    ),
    entry(
        "semaphore-left-over",
        "has non-zero count for",
        "has a nonzero value upon exit from a Mosaic kernel",
        title="a semaphore is not zero when the kernel ends",
        cause="a copy is never waited for, or a semaphore is signalled more often than waited for; "
        "the next kernel inherits the count, and a TPU halts",
        advice="wait for every copy that is started, and once for every signal",
        kinds=("SemaphoreLeftOver", "DmaNotAwaited"),
        links=(HALT,),
    ),
    entry(
        "wait-size-mismatch",
        title="a wait expects another number of bytes than its copy transfers",
        cause="a wait takes the size of its own descriptor from the semaphore, whatever the copy "
        "transferred",
        advice="wait with the descriptor that started the copy, or with one of the same slices and "
        "dtypes",
        kinds=("WaitSizeMismatch",),
    ),
    entry(
        "nondeterministic-result",
        title="two possible orders of events give different results",
        cause="copies, cores or devices write the same memory, and nothing orders them",
        advice="wait for one before the other starts, or give each a buffer of its own",
        kinds=("NondeterministicResult",),
    ),
    entry(
        "deadlock",
        title="a wait that never ends",
        cause="the semaphore is never signalled, or no copy is left to wait for",
        advice="start a copy for every wait, and signal once for every wait, on the device and "
        "core that waits",
        kinds=("Deadlock",),
        links=(JAX + "27963",),
    ),
    entry(
        "endless-loop",
        title="a loop that does not end",
        cause="its condition never becomes false: the body does not change what it depends on, "
        "steps past the one value that ends it, or polls memory that nothing changes; or the loop "
        "is longer than an interpreter can run",
        advice="change in the body what the condition depends on, compare with `<` rather than "
        "`!=`, and bound the loop with `fori_loop` where its length is known",
        kinds=("EndlessLoop",),
    ),
    entry(
        "halt-out-of-bounds",
        "BoundsCheck … [deref of ",
        title="the core halted because a kernel went out of bounds",
        cause="a copy or access reached past its buffer; what follows `for` is the "
        "instruction, and `deref of` its operand",
        advice="run the kernel under TPU interpret mode, which names the line, or with "
        "--xla_mosaic_on_device_checks=bounds",
        links=(HALT,),
    ),
    entry(
        "halt-launch-group",
        "shows up in the launch group with a different launch id",
        title="the hosts do not run the same program",
        cause="XLA flags, libtpu, the Python code or the order of its calls differ between hosts; "
        "two threads that launch programs are enough for that",
        advice="run the same code, versions and XLA_FLAGS on all of them, in the same order",
        links=(HALT,),
    ),
    entry(
        "halt-hardware",
        "observed errors are: [Hardware]",
        "observed errors are: [HARDWARE]",
        "observed errors are: [Network]",
        "observed errors are: [NETWORK]",
        "observed errors are: [Power]",
        "observed errors are: [POWER]",
        title="the chip, its network or its power failed",
        cause="nothing in the program",
        advice="run it again; if it is always the same host, take that host out",
        links=(HALT,),
    ),
    entry(
        "halt-user",
        "observed errors are: [User]",
        "observed errors are: [USER]",
        title="the core halted at an instruction that the hardware does not allow",
        cause="usually a kernel with DMAs that go out of bounds, otherwise a bug in the compiler",
        advice="run the kernel under TPU interpret mode first; then report it to XLA",
        links=(HALT,),
    ),
    entry(
        "core-halted",
        "Accelerator device halted prematurely",
        "halted unexpectedly at tag:pc",
        "The program continuator has halted unexpectedly",
        code="E0200",
        name="RuntimeUnexpectedCoreHalt",
        title="a core halted in the middle of a program",
        cause="a check in the program failed, a kernel went out of bounds or left a semaphore, or "
        "the hardware failed; the text after the address says which. All later calls fail with "
        "`The program continuator has halted unexpectedly`",
        advice="run the kernel under TPU interpret mode with detect_races; look for `observed "
        "errors are` in the log",
        general=True,
    ),
    entry(
        "masked-swap-assertion",
        "in swap_buffer_content",
        title="TPU interpret mode stopped at a store",
        cause="in this jax, a store past the ends of its buffer raises an AssertionError without "
        "text",
        advice="run it under pallas_debug.interpret, which names the slice; bound its start",
        versions="jax 0.10",
    ),
)
