"""Timeline of a kernel: libtpu's pipeline simulated, as a trace file and as a strip."""
