"""Public functions of the package, one file each."""
