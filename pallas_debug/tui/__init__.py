"""The terminal UI over dumps, `pallas-debug browse`.

Floor 4. The only room that imports textual; everything it shows is read by `store/` and `ir/`.
"""

import os

FRAMES = 250
"""Times a second that the screen may be drawn.

After a change Textual waits for the next but one tick of this clock; at its own 60 ticks that would
be most of what a key takes. Nothing is drawn at a tick before which nothing changed.
"""

# Read by Textual when it is imported, and at no other time; what a person has set is kept.
os.environ.setdefault("TEXTUAL_FPS", str(FRAMES))
