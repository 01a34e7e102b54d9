-- Token bucket: who waits leaves as soon as the cost fits. (throttle/algorithms/token_bucket.py)

A.departs = A.ready
