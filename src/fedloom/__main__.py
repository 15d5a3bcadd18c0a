"""`python -m fedloom`: the command line."""

from __future__ import annotations

from fedloom.cli import main

if __name__ == "__main__":
    main()
