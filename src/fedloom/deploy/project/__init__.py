"""A deployment's folder: what `deploy init` writes, the schema, and who is let in."""
