"""Data looked at before anything is trained, and the method that suits it: `fedloom check` and
`fedloom advise`."""
