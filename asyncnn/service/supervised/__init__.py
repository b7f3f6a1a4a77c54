"""A device that outlives its driver: reconnects, restarts, prepares models again."""
