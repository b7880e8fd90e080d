"""Record all runs anew."""

import sys

from .frames import main

sys.exit(main())
