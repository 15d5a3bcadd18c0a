"""SuperLink and SuperNodes as child processes, and a whole deployment on one machine."""
