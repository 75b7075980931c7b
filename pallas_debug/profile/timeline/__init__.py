"""Timeline of a kernel, walked or simulated, as a trace file and as a strip in the terminal."""
