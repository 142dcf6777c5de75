"""`python -m easyddl` runs the command `easyddl` with this Python."""

import sys

from easyddl.cli import main

sys.exit(main())
