"""`python -m contract_tests.kit` is the command."""

import sys

from contract_tests.kit.command import main

sys.exit(main())
