"""Images and sounds in the engine process: their tokens in texts, and their embeddings."""
