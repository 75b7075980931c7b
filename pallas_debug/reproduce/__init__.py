"""A dumped kernel as one script that needs jax alone, and a smaller one that fails the same.

recorded   what a dump holds of a kernel for a target
script     the script that is made of it
vet        that a dump's program does nothing but what kernels do
same       whether two failures are the same
run        a script in a process of its own
lines      a program as lines that can be taken out
changes    ways to make a program smaller
shrink     the search for a small one
"""
