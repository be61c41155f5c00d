"""The tokens that the KV cache holds, and the tiers behind it."""
