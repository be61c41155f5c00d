"""The options of models, a table for each subject: siblings, put together in
`engine.options.composition`."""
