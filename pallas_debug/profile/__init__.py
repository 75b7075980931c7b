"""Schedules into numbers: bundles, units, cycles, memory and traffic of a compiled kernel."""
