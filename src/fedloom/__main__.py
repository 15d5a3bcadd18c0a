"""What `python -m fedloom` and the command `fedloom` start.

The command line itself takes a fifth of a second to import, with Ctrl-C answered from here.
"""

from __future__ import annotations

from fedloom.signals import ending_at_once


def main() -> None:
    """The command line."""
    with ending_at_once():
        from fedloom.cli import main as command_line
    command_line()


if __name__ == "__main__":
    main()
