"""Detection of wrong arithmetic in a unit: exact results, bounds, overflow, NaN, lost precision."""
