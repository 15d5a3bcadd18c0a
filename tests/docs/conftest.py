"""Preparations of pages write files into the folder they run in, so they are not imported here."""

collect_ignore = ["before"]
