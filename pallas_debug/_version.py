"""The version of the distribution; read by the build and by `pallas-debug --version`."""

__version__ = "0.1.0"
