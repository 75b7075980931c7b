"""A walk through a schedule, as the scalar core would make it: loops, conditions, copies, waits."""
