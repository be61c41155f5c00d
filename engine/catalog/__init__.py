"""Where models come from: files, directories, presets, the cache of the Hugging Face hub."""
