"""The same edits on anybody's scripts.

The three faults of the guide's scripts stand in thousands of others.  Here no `sites` say how many
there are: each place is rewritten if that is certainly right, left alone if it is fine, and
otherwise named for a human.
"""
