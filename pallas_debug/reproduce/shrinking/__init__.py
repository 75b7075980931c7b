"""Delta debugging: the search for a smaller program that fails the same.

lines     a program as lines that can be taken out
changes   ways to make a program smaller
lowering  candidates, lowered in a child process that is kept
worker    what that child does
search    the search
"""
