"""Seconds as one reads them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """In the two largest units.

    >>> duration(3.21), duration(75.2), duration(5400), duration(90000)
    ('3.2 s', '1 min 15 s', '1 h 30 min', '1 d 1 h')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
