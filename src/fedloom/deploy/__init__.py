"""Data stays at the sites: a federation as a Flower app, and what an administrator needs for it.

What runs: `settings` (what all agree on), `site` and `site_config` (one site), `server` and
`site_registry` (the other end, and which site is which client), `apps` (both as Flower sees them),
`personal` (a site's own model).

What sets it up: `new_project` and `certificates` (what `deploy init` writes), `project`,
`processes`, `federation` and `superlink_guard` (a SuperLink and SuperNodes as child processes),
`rehearsal` (`deploy local`), `check` (`deploy check`), `cli`.
"""
