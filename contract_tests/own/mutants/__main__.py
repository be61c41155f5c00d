"""A server that is broken on purpose, for test_mutants.py.

    python -m contract_tests.own.mutants FILE [options of specllama]

It lies in the way that FILE names, from the next request on; any other word there makes it a
healthy one.
"""

import sys
from pathlib import Path

from contract_tests.own.mutants.catalog import ALL
from contract_tests.own.mutants.mutant import install
from specllama.cli import main

switch = Path(sys.argv[1])
install(ALL, switch.read_text)
sys.exit(main(sys.argv[2:]))
