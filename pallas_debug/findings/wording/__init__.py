"""Wording of each fault: facts in, a finding with message, cause and advice out.

One function per fault, called by every engine that sees it with the facts it has. A cause is named
only where the facts show it; otherwise the explanation of the fault stands in.
"""
