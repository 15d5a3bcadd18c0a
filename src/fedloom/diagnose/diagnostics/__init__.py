"""One diagnostic, one file, which ends with `DIAGNOSTIC`. A new file here is a new diagnostic."""
