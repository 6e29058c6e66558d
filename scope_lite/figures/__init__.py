"""Table in, figure out: nothing here trains, and no model is loaded.

``style`` is what all figures share (style.yaml: colours and names), ``training`` the curves of runs; ``gallery`` lists
the paper's figures (gallery.yaml: under a figure's number, the function that draws it) and writes what each was drawn
from beside it, ``tables`` the paper's tables (tables.yaml); ``notebook`` is what notebooks share; each
other file draws the figures of one subject. What is not here: numbers that no table holds (``experiments`` makes the
tables, ``measure`` the intervals).
"""
