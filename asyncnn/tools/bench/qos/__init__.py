"""``asyncnn bench qos``: priorities, deadlines, and what scheduling them costs.

Urgent executions of a small model, at HIGH, are timed on an idle device, on one that is
saturated with a large model at LOW, and beside the same load on a first-come,
first-served thread pool. The rounds alternate; percentiles are of all rounds together.
"""
