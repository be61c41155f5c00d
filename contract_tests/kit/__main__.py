"""Runs the command `specllama-contract` as `python -m contract_tests.kit`."""

import sys

from contract_tests.kit.command import main

sys.exit(main())
