"""The order of a run: tasks and their clocks, accesses that race, accounts of semaphores."""
