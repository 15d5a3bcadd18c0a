"""The other end: the run, which site is which client, the server's log, and taking a run back."""
