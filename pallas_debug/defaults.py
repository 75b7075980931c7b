"""Default values: chip, directory, timeouts, checks. Imports nothing."""

CHIP = "v5e"
"""Target whose chip is reported to interpreted code that queries one."""

TARGETS = "v5e"
"""Targets to compile for."""

VERIFY_TARGETS = "all"
"""Targets for which `verify` judges kernels."""

DIRECTORY = "dumps"
"""Dump directory."""

STAGES = ("mosaic", "llo", "bundles", "estimate")
"""Stages of a compilation that a dump can keep; the first one always is."""

ESTIMATE_TIMEOUT = 30.0
"""Seconds for a compilation that also makes libtpu's cycle estimate, before it is made without.

libtpu simulates the whole grid, which takes some 25 ms of a core for each of its points.
"""

REPORT = "report.html"
"""File that `report` writes."""

MAX_REPORT_JOBS = 4
"""Maximum number of processes in which `report` reads schedules."""

MAX_CACHED_OBJECTS, MAX_CACHED_COPIES = 512 << 20, 128
"""Maximum bytes, and number, of local copies of texts that were read from an object store."""

OBJECT_STORE_PAUSE = 10.0
"""Seconds for which an object store that did not answer is not asked again."""

DASK_TIMEOUT = 10.0
"""Seconds to wait for a Dask scheduler, or for a worker of it."""

MAX_SETTINGS = 4096
"""Maximum number of settings of a sweep."""

SETTING_MARGIN = 5.0
"""Seconds after the time limit of a setting at which its process is killed, if its compiler was
not."""

WORKER_EXIT = 10.0
"""Seconds in which a killed worker process has to be gone."""

COMPILE_TIMEOUT = 120.0
"""Seconds for one compilation."""

HANG_AFTER = 30.0
"""Seconds without progress after which an interpreted kernel is stopped."""

VERIFY_HANG_AFTER = 5.0
"""The same limit in `verify`."""

MAX_ITERATIONS = 100_000
"""Iterations after which the kernel machine takes a loop to be endless that counts to no bound."""

MAX_STEPS = 100_000_000
"""Grid points, times iterations of loops of fixed length, above which no kernel is interpreted."""

MAX_SIMULATED_STEPS = 2_000_000
"""The same in TPU interpret mode and on the kernel machine, where a step takes up to milliseconds;
loops that access no memory are not counted. The machine stops a loop that counts to a bound after
as many iterations."""

MAX_BUSY = 1800.0
"""Seconds, of time and of CPU time, after which `verify` takes a program for one that does not end,
unless `--stop-after` sets another limit."""

MAX_SHADOW_BYTES = 4 << 30
"""Maximum bytes of shadow memory of a sanitized kernel."""

MAX_INPUT_BYTES = 4 << 30
"""Maximum bytes of one array that is made or read as an argument."""

TIMELINE_STEPS = 64
"""Grid steps at the beginning of a trace file, and half as many at the end."""

MAX_TIMELINE_STEPS = 4096
"""Maximum grid steps at the beginning of a timeline."""

SCRIPT_TIMEOUT = 120.0
"""Seconds for one run of a reproduction script."""

MAX_JOBS = 4
"""Maximum number of compiler processes by default; at most one per core."""

LIBTPU_DAYS = 180
"""Age in days above which `doctor` warns about a libtpu other than the one its jax was made for.

jax and libtpu are kept compatible for some weeks; after half a year new kernels stop compiling.
"""

RACES_MODE = "tpu,detect_races,num_cores_or_threads=2"
"""Interpret mode that detects data races."""

SANITIZE_MODE = "machine,sanitize"
"""Interpret mode that judges what kernels do, element by element."""

CHECKS = {
    "user": "`checkify.check` and `pl.debug_check` that fail",
    "nan": "a NaN produced from operands without NaN",
    "inf": "an infinity produced from finite operands",
    "index": "a slice, a copy or a block that leaves its array",
    "div": "an integer divided by zero",
    "float_div": "a float divided by zero",
    "hint": "a `pl.multiple_of` that is not true",
    "uninitialized": "a scratch buffer, output or padding that is read before it was written, "
    "where the NaN it holds reaches an output (interpret modes only)",
}
"""What each check detects."""

DEFAULT_CHECKS = ("user", "nan", "index", "div", "hint", "uninitialized")
"""Checks made by default."""
