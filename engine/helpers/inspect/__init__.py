"""Reading of the metadata in model files."""
