"""Why something can't be fetched."""


class FetchError(Exception):
    """The rest of a sentence about what was to be fetched, for the user."""
