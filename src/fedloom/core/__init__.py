"""The core: trees, messages, nets, terms, methods, the one loop, the one mean, the one evaluation.

It imports nothing else of fedloom but `errors`.
"""
