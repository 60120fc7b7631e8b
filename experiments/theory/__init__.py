"""The paper's claims (Sections 5 and 6) as small experiments: one module per claim.

``experiment`` holds what they share: the command, the files and the intervals.
"""
