"""`python -m outlast` is `outlast`."""

import sys

from outlast.entry import main

if __name__ == "__main__":
    sys.exit(main())
