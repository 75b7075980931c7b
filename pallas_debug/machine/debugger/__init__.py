"""Debugger run of a kernel: snapshots, replay, and values at any step.

driver     runs the whole machine one step at a time
snapshots  copies of the machine's state, from which it is replayed
live       the run as a track that can be stepped in both directions
names      values by the names in the user's code
writers    the writers of an element
"""
