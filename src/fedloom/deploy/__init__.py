"""Data stays at the sites: a federation as a Flower app, and what an administrator needs for it.

`settings` what a federation agrees on, `site` one site, `server` the other end, `apps` both as
Flower sees them, `personal` the model a site ends up with.
"""
