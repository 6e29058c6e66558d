"""What is in a basket, and what it costs."""


def total(prices):
    """The sum of all prices."""
    return sum(prices)


def count(prices):
    """How many things there are."""
    return len(prices)


def label(name, price):
    """How a thing is shown."""
    return f"{name}: {price}"
