"""A run: its configuration, its loop over rounds, what it leaves on disk."""
