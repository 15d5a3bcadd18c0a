"""The program registers its methods where it is imported, so it is only run and checked."""

collect_ignore = ["user_program.py"]
