"""Reproduce a dumped kernel as one script that needs only jax, and shrink it.

recorded     a kernel for a target, read from a dump
grammar      programs, rewritten by a closed grammar
expressions  expressions of programs
flags        flags of libtpu that a script may set
template     the parts common to all scripts
script       the script generated from a dump
vet          check of a script against its template
confined     child processes with limits and a minimal environment
boot         first code of such a child; imports nothing of ours
run          run a script in a child process
same         whether two failures are the same
shrinking    the search for a smaller script that fails the same
"""
