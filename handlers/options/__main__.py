"""`python -m handlers.options > docs/options.md`"""

import sys

from handlers.options.help import reference

sys.stdout.write(reference())
