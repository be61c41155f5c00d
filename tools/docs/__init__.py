"""The documentation: its pages, their code blocks, and the site that is built from them."""
