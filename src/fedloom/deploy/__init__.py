"""Data stays at the sites: a federation as a Flower app, and what an administrator needs for it.

What runs: `settings` (what all agree on), `site` and `site_config` (one site), `server` and `books`
(the other end, and who is who), `apps` (both as Flower sees them), `personal` (a site's own model).

What sets it up: `new_project` and `certificates` (what `deploy init` writes), `project`,
`processes`, `federation` and `guard` (a SuperLink and SuperNodes that end as they should),
`rehearsal` (`deploy local`), `check` (`deploy check`), `cli`.
"""
