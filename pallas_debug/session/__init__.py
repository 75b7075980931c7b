"""One session: captures kernels, compiles them in the background, notifies subscribers.

options    what a session is to do
queue      from a captured kernel to its compilations, and the subscriber that stores them
session    the session itself
"""

from pallas_debug.session.options import DEFAULT_CHIP as DEFAULT_CHIP
from pallas_debug.session.options import DEFAULT_HANG as DEFAULT_HANG
from pallas_debug.session.options import Interpret as Interpret
from pallas_debug.session.options import Options as Options
from pallas_debug.session.options import resolve_targets as resolve_targets
from pallas_debug.session.session import Session as Session
