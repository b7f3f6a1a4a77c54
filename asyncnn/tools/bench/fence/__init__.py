"""``asyncnn bench fence``: what it costs to wait for fences, beside other waits.

Single waits within a process; a hundred executions in a driver process, chained by
fences or awaited one by one; frames through four stages. Nothing is computed, as it is
the waiting that is measured.
"""
