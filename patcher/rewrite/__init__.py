"""The same edits on anybody's scripts.

The three faults of the guide's scripts stand in thousands of others.  Here no `sites` say how many there are:
each place is rewritten where that is certainly right, left alone where it is fine, and otherwise a human's.
"""
