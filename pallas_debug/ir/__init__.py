"""Compiler text: operations, locations, normal forms, diff and search."""
