"""`python -m easyddl` is the command `easyddl`, of this very Python."""

import sys

from easyddl.cli import main

sys.exit(main())
