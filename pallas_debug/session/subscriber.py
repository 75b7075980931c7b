"""Events of a session, for the objects that it notifies."""

from __future__ import annotations

from pallas_debug.model import Kernel, PrintRecord


class Subscriber:
    """Base class of what a session notifies, in the thread of the event; by default, of nothing.

    An exception in one of these methods does not fail the user's program: it is reported when the
    session ends.
    """

    def kernel_captured(self, kernel: Kernel) -> None:
        """Handle a kernel that is lowered for the first time in the session."""

    def kernel_used(self, kernel: Kernel) -> None:
        """Handle a run, or a lowering ahead of time, of a program that contains the kernel."""

    def printed(self, record: PrintRecord) -> None:
        """Handle a line that a kernel prints."""
