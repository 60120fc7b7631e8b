"""The paper's claims (Sections 5 and 6) as small experiments: one module a claim.

``experiment`` holds what they share: the command, the files and the intervals.
"""
