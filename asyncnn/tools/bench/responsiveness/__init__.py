"""``asyncnn bench responsiveness``: how long calls keep event loops from their turns.

A heartbeat of 1 ms beats on the event loop of the application, and on that of the
driver process if there is one, while large models are prepared, queried, cached,
loaded, run for the first time and released, and while large inputs are run. What counts
is how late the beats are, beside those of loops that have nothing else to do.
"""
