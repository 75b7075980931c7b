"""Rules about loops that reduce, and about operations that combine values step by step."""
