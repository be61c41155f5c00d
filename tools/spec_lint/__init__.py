"""The description under the rules of Redocly and Spectral, which come from npm."""
