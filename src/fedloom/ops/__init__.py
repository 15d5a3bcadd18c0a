"""The papers' mathematics as pure functions."""
