"""Simulation of the scalar core over a schedule: loops, conditions, copies and waits."""
