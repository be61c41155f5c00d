"""All mutants."""

from tests.simulation import mutants_of_memory, mutants_of_running

MUTANTS = (*mutants_of_memory.MUTANTS, *mutants_of_running.MUTANTS)
