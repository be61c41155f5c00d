"""`python -m specllama`"""

import sys

from specllama.cli import main

if __name__ == "__main__":
    sys.exit(main())
