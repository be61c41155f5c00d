"""The options of the server, one table per subject, which `handlers.options.composition`
combines."""
