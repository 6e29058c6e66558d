"""People who wait in a line."""


class Line:
    """First come, first served."""

    def __init__(self):
        self.people = []

    def join(self, name):
        """Somebody comes."""
        self.people.append(name)

    def serve(self):
        """Who is next, and leaves the line."""
        return self.people.pop(0)
