"""Names of the records in Flower's messages; imports no torch, for what only looks at messages."""

STATE, SCORE = "state/", "score/"
"""Prefixes of the records that hold a slice, and of those that hold a score."""
TASKS = ("client", "evaluate", "save")
"""What a server may ask of a client."""
