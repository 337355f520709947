"""Whether a machine is fit to be a node: each thing that Spur makes use of, tried, in one line.

Nothing is concluded from a version or a distribution where it can be done once instead. Nothing is changed either:
what a check makes, it removes. Runs in a process of its own, for as long as it takes to print its findings.
"""
