"""Order of a run: tasks and their clocks, racing accesses, semaphore ledgers."""
