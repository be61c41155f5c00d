"""One module for each group of a model's options. `engine.options.composition` puts the tables
together."""
