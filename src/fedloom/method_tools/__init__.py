"""What several methods need beside mathematics: rows per client, constants sent once."""
