"""Delta debugging: a smaller script that fails the same way.

lines     a program as lines that can be taken out
changes   ways to make a program smaller
lowering  candidates, lowered in a child process that is kept
worker    what that child does
search    the search
"""
