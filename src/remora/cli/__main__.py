"""`python -m remora.cli` is `remora`."""

import sys

from remora.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
