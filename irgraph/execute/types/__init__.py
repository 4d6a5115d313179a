"""Types of views, and the cache of models whose types torch verified."""
