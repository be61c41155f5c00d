"""The contents of the KV cache, and the second tier for evicted texts."""
