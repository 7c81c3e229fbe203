"""Tasks run by engines that place, queue and retry: Temporal, Celery, Ray. One module each.

An engine carries the id of a task and its tenant, nothing else. What was done is in the store, and
the store decides who may work on it: a task that is dispatched twice is run once.
"""

__all__ = ["celery", "ray", "temporal"]
