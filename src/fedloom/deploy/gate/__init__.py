"""The site decides: an entry point around Flower's SuperNode that lets nothing in or out by itself.

It runs as `python -m fedloom.deploy.gate` outside of the process in which the federation's code
runs, imports none of that code, and no torch. Whatever fails in it is a refusal.

`form` (what may leave), `orders` and `replies` (messages, read and written anew), `decide` (the
decisions), `counters` (what left so far), `supernode` (Flower's functions that it replaces),
`assess`, `attempt` and `derive` (what needs torch and the site's data, in a process of its own,
which `confined` bounds).
"""
