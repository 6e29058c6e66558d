"""Lengths in metres."""

METRES = {
    "m": 1.0,
}


def metres(length, unit):
    """A length in metres."""
    return length * METRES[unit]
