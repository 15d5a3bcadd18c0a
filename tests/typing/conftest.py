"""The user's program registers its methods where it is imported: here it is only run and checked."""

collect_ignore = ["user_program.py"]
