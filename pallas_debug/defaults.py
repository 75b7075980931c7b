"""Default values: chip, directory, timeouts, checks. Imports nothing."""

TARGET = "v5e"
"""Target of every command, option and function, and chip that interpreted code sees if it asks."""

DIRECTORY = "dumps"
"""Dump directory."""

STAGES = ("mosaic", "llo", "bundles", "estimate")
"""Stages of a compilation that a dump can keep; the first is always kept."""

ESTIMATE_TIMEOUT = 30.0
"""Time limit in seconds for a compilation with libtpu's estimate, before it is retried without it.

libtpu simulates the whole grid, which takes about 25 ms of CPU time per grid point.
"""

REPORT = "report.html"
"""File that `report` writes."""

MAX_SETTINGS = 4096
"""Maximum number of settings of a sweep."""

SETTING_MARGIN = 5.0
"""Seconds past a setting's time limit after which workers that finish nothing count as hung."""

COMPILE_TIMEOUT = 120.0
"""Time limit in seconds for one compilation."""

MAX_SECONDS = 1e9
"""Maximum of any time limit in seconds: 31 years. Timers of the system overflow at 292 years."""

HANG_AFTER = 15.0
"""Seconds that a device waits in a kernel for the other devices of its mesh."""

MAX_ITERATIONS = 100_000
"""Iterations after which the kernel machine considers a loop without a bound endless."""

MAX_STEPS = 100_000_000
"""Maximum grid points, times iterations of loops of fixed length, of an interpreted kernel."""

MAX_SIMULATED_STEPS = 2_000_000
"""The same in TPU interpret mode and on the kernel machine, where a step can take milliseconds;
loops that access no memory are not counted. The machine stops a loop that counts to a bound after
this many iterations."""

MEMORY_SHARE = 0.8
"""Share of the computer's memory that a process may use while it runs a kernel on the machine."""

MAX_SHADOW_BYTES = 4 << 30
"""Maximum size in bytes of the shadow memory of a sanitized kernel."""

MAX_INPUT_BYTES = 4 << 30
"""Maximum size in bytes of an array that is created or read as an argument."""

TIMELINE_STEPS = 64
"""Number of grid steps at the beginning of a trace file; half as many are shown at the end."""

MAX_JOBS = 4
"""Default maximum number of compiler processes; at most one per core."""

SANITIZE_MODE = "machine,sanitize"
"""Interpret mode of the sanitizer."""

CHECKS = {
    "user": "a `checkify.check` or `pl.debug_check` that fails",
    "nan": "a NaN produced from operands without NaN, which reaches a result",
    "inf": "an infinity produced from finite operands, which reaches a result",
    "index": "a slice, a copy or a block that reaches outside its array",
    "div": "an integer divided by zero",
    "float_div": "a float divided by zero, where the NaN or infinity reaches a result",
    "hint": "a `pl.multiple_of` that is not true",
    "uninitialized": "memory or padding that is read before it is written, where it changes a "
    "result, and outputs that are not written (on the kernel machine only)",
}
"""What each check detects."""

DEFAULT_CHECKS = ("user", "nan", "index", "div", "hint", "uninitialized")
"""Checks made by default."""

SEARCH_BUDGET = 60.0
"""Seconds for which `search` tries inputs."""
