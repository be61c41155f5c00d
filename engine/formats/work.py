"""Budgets of work for what analyses the schemas that requests bring."""


class OutOfWorkError(Exception):
    """An analysis takes more work than it may."""


class Work:
    """A budget, counted in steps rather than on the clock, so that the same schema always ends
    the same way on any machine."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int) -> None:
        """Raises OutOfWorkError, from then on each time."""
        self._left -= steps
        if self._left < 0:
            raise OutOfWorkError
