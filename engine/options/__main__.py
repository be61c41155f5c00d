"""`python -m engine.options > docs/options.md`"""

import sys

from engine.options import reference

sys.stdout.write(reference())
