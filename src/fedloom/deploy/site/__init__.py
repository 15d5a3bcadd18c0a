"""One site: its file, its data and answers, and the states it keeps."""
