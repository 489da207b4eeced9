"""The folder is where tests find `families`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
