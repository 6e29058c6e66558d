"""Counting words."""


def words(text):
    """The words of a text."""
    return text.split()


def longest(text):
    """The longest word; of several the first."""
    return max(words(text), key=len)
