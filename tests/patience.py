"""How long a test waits for what has to happen.

A wait ends when its condition holds, so a long one costs nothing; this is for what never comes. It is far
more than anything takes on a machine that is busy with other work, and less than the net of pytest, so that
the test can say what was missing.
"""

PATIENCE_S = 300.0
