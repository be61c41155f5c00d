"""`python -m specllama.handlers.options > docs/options.md`"""

import sys

from specllama.handlers.options.help import reference

if __name__ == "__main__":
    sys.stdout.write(reference())
