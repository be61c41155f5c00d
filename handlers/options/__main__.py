"""`python -m handlers.options > docs/options.md`"""

import sys

from handlers.options.help import reference

if __name__ == "__main__":
    sys.stdout.write(reference())
