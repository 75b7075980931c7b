"""Rules about loops that reduce, or that combine what they go over."""
