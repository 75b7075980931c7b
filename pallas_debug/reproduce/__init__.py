"""A dumped kernel as a script that needs jax alone, run confined and shrunk.

recorded     what a dump holds of a kernel for a target
grammar      programs, written again from what was read; the rest is refused
expressions  the same of their expressions
flags        flags of libtpu that a script may set
template     what every script is made of
script       the script that is made of a dump
vet          the last look at a script: the template, and data in its gaps
confined     child processes with limits and hardly an environment
boot         what such a child does first, without any import of ours
run          a script in a process of its own
same         whether two failures are the same
shrinking    the search for a smaller script that fails the same
"""
