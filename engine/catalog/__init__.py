"""Sources of models: files, directories, presets, the cache of the Hugging Face Hub."""
