"""The folder is where tests find `towers` and `documents`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
