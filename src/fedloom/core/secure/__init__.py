"""Secure aggregation: the server learns the sum of a round's uploads, and no upload.

After Bonawitz et al. (CCS 2017). Every client adds masks to its upload: one that it shares with
each other client of the round and that cancels in the sum, and one of its own. `setting` says how,
`numbers` turns tensors into whole numbers, `keys` and `shamir` are the cryptography, `client` is
what a client answers, `server` adds up and takes off what is left of the masks. In which order the
messages go is in `fedloom.runs.secure_round`.
"""
