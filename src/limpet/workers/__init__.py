"""Which function runs which task, and what runs it: our own worker, Celery, Ray, Temporal."""
