"""One module for each group of the server's options. `handlers.options.composition` puts the tables
together."""
