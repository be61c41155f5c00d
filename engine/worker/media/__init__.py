"""Images and sound in the engine process: what they are in a text, and their embeddings."""
