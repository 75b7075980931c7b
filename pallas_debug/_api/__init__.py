"""Public verbs, one file each."""
