"""Requests for embeddings and for rerank scores."""
