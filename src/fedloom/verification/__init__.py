"""A run checked by somebody else: its records against each other, and a sample computed again.

`records` reads what a run wrote down and compares it with itself, `draw` chooses what is computed
again and says at what odds a change is caught, `replay` computes it, `check` is the whole.
"""
