"""`python -m tests.fuzz`: see run.py."""

import sys

from tests.fuzz.run import main

sys.exit(main())
