"""The driver's side: a server, and a session for each client.

Nothing that a client sends is trusted. Everything it owns hangs on its session.
"""
