"""The debugger's run of a kernel: snapshots, replay, and the values at any step.

driver     one step of the whole machine at a time
snapshots  copies of the machine's state, from which it is replayed
live       the run as a track, which is stepped through in both directions
names      values by the names of the user's code
writers    who wrote an element
"""
