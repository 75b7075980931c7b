"""Runtime errors of kernels: bounds, blocks, copies, semaphores, halts."""

from __future__ import annotations

from pallas_debug.explain.catalogue.record import ERRORS, JAX, PALLAS, entry

HALT = ERRORS + "0200"

ENTRIES = (
    entry(
        "out-of-bounds",
        "Out-of-bounds read of",
        "Out-of-bounds write of",
        "Out-of-bounds swap of",
        "Out-of-bounds masked swap of",
        "is (at least partially) out of bounds for",
        title="a load, store or copy is out of bounds",
        cause="HLO interpret mode silently clamps such a slice; a TPU reads or writes whatever "
        "memory is there",
        advice="limit the start to the dimension's size minus the slice's, or pad the array; a "
        "negative index does not count from the end",
        kinds=("OutOfBoundsRead", "OutOfBoundsWrite"),
        links=(PALLAS + "tpu/details.html", JAX + "30259"),
    ),
    entry(
        "block-out-of-bounds",
        "Out-of-bounds block index",
        title="an index map returns a block that the array does not have",
        cause="the index map returns element offsets instead of block indices, or takes the block "
        "from a scalar-prefetch table with wrong entries",
        advice="return the index of the block (divide by the block size), clamp it, or check the "
        "table before the call",
        kinds=("BlockOutOfBounds",),
        links=(PALLAS + "grid_blockspec.html", JAX + "31395", JAX + "23181"),
    ),
    entry(
        "output-revisited",
        "Revisited block",
        title="an output block is visited again after another block",
        cause="an output block is written back when the next one begins, and is not read back: "
        "earlier sums in it are lost",
        advice="put the grid axes along which the output block stays the same last",
        kinds=("OutputRevisited",),
        links=(PALLAS + "grid_blockspec.html", JAX + "30581"),
    ),
    entry(
        "data-race",
        "RACE DETECTED",
        title="two unordered accesses to the same memory, at least one of them a write",
        cause="a copy is still in flight while its buffer is read or written, or two cores write "
        "the same block",
        advice="wait for the copy before the line on the other side; give parallel grid points "
        "their own blocks",
        versions="jax 0.10 prints it and continues, jax 0.12 raises an exception",
        kinds=("DataRace",),
    ),
    entry(
        "parallel-prefix",
        "Dimensions with parallel semantics must form a prefix of the grid",
        title="a parallel grid axis follows one that is not parallel",
        cause="TPU interpret mode distributes only the leading axes over its cores",
        advice="put the parallel axes first, or run with one core",
    ),
    entry(
        "semaphore-left-over",
        "has non-zero count for",
        "has a nonzero value upon exit from a Mosaic kernel",
        title="a semaphore is not zero when the kernel ends",
        cause="a copy is never waited for, or a semaphore is signalled more often than it is "
        "waited for; the next kernel inherits the count, and a TPU halts",
        advice="wait once for every copy started and for every signal",
        kinds=("SemaphoreLeftOver", "DmaNotAwaited"),
        links=(HALT,),
    ),
    entry(
        "wait-size-mismatch",
        title="a wait expects a different number of bytes than its copy transfers",
        cause="a wait takes the size of its own descriptor from the semaphore, regardless of what "
        "the copy transferred",
        advice="wait with the descriptor that started the copy, or with one of the same slices and "
        "dtypes",
        kinds=("WaitSizeMismatch",),
    ),
    entry(
        "nondeterministic-result",
        title="two possible orders of events give different results",
        cause="copies, cores or devices write the same memory, and nothing orders the writes",
        advice="wait for one copy before starting the other, or give each its own buffer",
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
        cause="its condition never becomes false: the body does not change the values it depends "
        "on, steps past the one value that ends it, or polls memory that nothing changes; "
        "or the loop is longer than an interpreter can run",
        advice="change the values that the condition depends on in the body, compare with `<` "
        "rather than `!=`, and use `fori_loop` if the number of iterations is known",
        kinds=("EndlessLoop",),
    ),
    entry(
        "halt-out-of-bounds",
        "BoundsCheck … [deref of ",
        title="the core halted because a kernel went out of bounds",
        cause="a copy or access reached past its buffer; the instruction follows `for`, its "
        "operand `deref of`",
        advice="run the kernel under TPU interpret mode, which names the line, or with "
        "--xla_mosaic_on_device_checks=bounds",
        links=(HALT,),
    ),
    entry(
        "halt-launch-group",
        "shows up in the launch group with a different launch id",
        title="the hosts are not running the same program",
        cause="XLA flags, libtpu, the Python code or the order of its calls differ between hosts; "
        "two threads that launch programs are enough to cause this",
        advice="run the same code, in the same order, with the same versions and XLA_FLAGS on all "
        "hosts",
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
        cause="the hardware, not the program",
        advice="run it again; if it is always the same host, remove that host",
        links=(HALT,),
    ),
    entry(
        "halt-user",
        "observed errors are: [User]",
        "observed errors are: [USER]",
        title="the core halted at an instruction that the hardware does not allow",
        cause="usually a kernel with out-of-bounds DMAs, otherwise a compiler bug",
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
        cause="a check in the program failed, a kernel went out of bounds or left a semaphore "
        "raised, or the hardware failed; the text after the address says which. All later "
        "calls fail with `The program continuator has halted unexpectedly`",
        advice="run the kernel under TPU interpret mode with detect_races; look for `observed "
        "errors are` in the log",
        general=True,
    ),
    entry(
        "masked-swap-assertion",
        "in swap_buffer_content",
        title="TPU interpret mode stopped at a store",
        cause="in this jax, an out-of-bounds store raises an AssertionError without a message",
        advice="run it under pallas_debug.interpret, which reports the slice; bound its start",
        versions="jax 0.10",
    ),
)
