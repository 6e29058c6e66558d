"""Table in, figure out: nothing here trains, and no model is loaded.

``style`` and ``sidecar`` are what all figures share, ``gallery`` lists them, ``tables`` writes tables for papers,
``notebook`` is what notebooks share; each other file draws the figures of one subject. What is not here: numbers that
no table holds (``experiments`` makes the tables, ``measure`` the intervals).
"""
