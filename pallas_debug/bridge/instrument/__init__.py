"""Insertion of checks and prints into kernels, and delivery of their reports."""
