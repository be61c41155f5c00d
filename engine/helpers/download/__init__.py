"""Downloads of models from the Hugging Face Hub, OCI registries and URLs."""
