"""Flower's SuperLink behind a guard: `python -m fedloom.deploy.guard` for `flower-superlink`.

Flower serves three interfaces on one port: the sites' (every call signed with a site's key), the
one that submits runs, and the one that hands out a run's tasks. The last two have no
authentication, and a run is code that every site executes. Flower also reads a request's body
before it looks at the key, keeps whatever arrives, and never forgets a key.

`requests` decides on each request before its body is read, `local_peer` who on this machine may
submit runs, `connections` how many may be open and how long a request may take to arrive,
`uploads` what a site may send as a reply, and `serve` puts all of it around Flower's own program.
"""
