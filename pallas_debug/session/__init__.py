"""A session: captures kernels, compiles them in the background, notifies subscribers.

options    options of a session
queue      background compilation of captured kernels, and storage of the results
observer   collection of what running kernels report: findings, hints, prints
subscriber base class of what a session notifies
session    the session itself
"""

from pallas_debug.session.options import Interpret as Interpret
from pallas_debug.session.options import Mode as Mode
from pallas_debug.session.options import Options as Options
from pallas_debug.session.options import another_path as another_path
from pallas_debug.session.options import has_accelerator as has_accelerator
from pallas_debug.session.options import leave_out_absent_tpu as leave_out_absent_tpu
from pallas_debug.session.options import only_defines as only_defines
from pallas_debug.session.options import pretending as pretending
from pallas_debug.session.options import resolve_targets as resolve_targets
from pallas_debug.session.options import sanitizing as sanitizing
from pallas_debug.session.options import without_effect as without_effect
from pallas_debug.session.session import Session as Session
from pallas_debug.session.subscriber import Subscriber as Subscriber
