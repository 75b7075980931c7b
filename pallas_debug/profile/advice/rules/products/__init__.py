"""Rules about matrix products."""
