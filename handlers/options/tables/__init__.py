"""The options of the server, a table for each subject: siblings, put together in
`handlers.options.composition`."""
