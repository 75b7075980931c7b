"""Sweeps: compile a function with a grid of settings in parallel, and compare the costs.

grid       the settings
task       what a worker does for one setting: trace, compile, read the figures
workers    worker processes on this machine, and their end
run        the sweep itself
result     its outcome, best setting first
"""
