"""Data stays at the sites: a federation as a Flower app, and what an administrator needs for it.

`settings` is what all agree on, `apps` both ends as Flower sees them, `cli` the commands. `site` is
one site and `gate` what stands around its SuperNode; `consent` what it is asked and what its
operator agreed to. `server` is the other end and `guard` what stands around the SuperLink.
`project` is the folder on the server with its schema and keys, `processes` everything as child
processes (`deploy local` too), `check` what `deploy check` tells, `operations` what IT asks for.
"""
