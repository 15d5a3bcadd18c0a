"""What a process has imported when it is forked (`forking`): all that runs side by side need."""

from fedloom.collector import uncollected

with uncollected():
    import fedloom.launch.compare  # noqa: F401
