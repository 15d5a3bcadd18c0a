"""What a site is asked to run, and what its operator agreed to (`deploy approve | try`)."""
