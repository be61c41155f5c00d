"""The documentation: its pages, the code blocks in them, and the site that is built of them."""
