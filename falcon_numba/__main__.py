"""``python -m falcon_numba`` is the command ``falcon-numba``."""

import sys

from .cli import main

sys.exit(main())
