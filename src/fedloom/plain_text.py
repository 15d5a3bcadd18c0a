"""Texts that somebody else wrote, made fit for a terminal, a log line and a journal."""

from __future__ import annotations

MOST_CHARACTERS = 300


def plain(text: object, most: int = MOST_CHARACTERS) -> str:
    """One line of printable characters, cut where it is too long.

    Control characters could forge lines of a log or give orders to a terminal; what is not
    printable becomes a question mark.

    >>> plain("lost\\n\\x1b[2Jfedloom: all is well")
    'lost ?[2Jfedloom: all is well'
    >>> plain("a" * 1000, most=5)
    'aaaaa... (1000 characters)'
    """
    whole = str(text)
    words = " ".join(whole[: 4 * most].split())
    line = "".join(c if c.isprintable() else "?" for c in words)
    if len(whole) <= 4 * most and len(line) <= most:
        return line
    return f"{line[:most]}... ({len(whole)} characters)"
