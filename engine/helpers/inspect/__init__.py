"""Reading the metadata of model files."""
