"""General entries, for messages that no other entry matches."""

from __future__ import annotations

from pallas_debug.explain.catalogue.record import entry

STATUSES = (
    ("E0000", "Cancelled"),
    ("E0001", "Unknown"),
    ("E0002", "InvalidArgument"),
    ("E0003", "DeadlineExceeded"),
    ("E0004", "NotFound"),
    ("E0005", "AlreadyExists"),
    ("E0006", "PermissionDenied"),
    ("E0007", "ResourceExhausted"),
    ("E0008", "FailedPrecondition"),
    ("E0009", "Aborted"),
    ("E0010", "OutOfRange"),
    ("E0011", "Unimplemented"),
    ("E0012", "Internal"),
    ("E0013", "Unavailable"),
    ("E0014", "DataLoss"),
    ("E0015", "Unauthenticated"),
)
"""XLA error codes that only name a status."""

ENTRIES = (
    entry(
        "verification-error",
        "Pallas encountered an internal verification error",
        kind="InvalidOperation",
        title="jax generated an invalid operation",
        cause="the message asks for a bug report, but usually the kernel mixes up scalars and "
        "vectors, dtypes or shapes; the operation in the message is the one that the line "
        "was lowered to",
        advice="look at the operation and the types in the message, and cast or reshape so that "
        "they match",
        general=True,
    ),
    entry(
        "xla-status",
        *(f"{code}: {name}" for code, name in STATUSES),
        title="an XLA error without a code of its own",
        cause="these codes name only a status, such as an invalid argument, an exhausted resource "
        "or an internal error",
        advice="read the text after the code: it describes the error",
        general=True,
    ),
)
