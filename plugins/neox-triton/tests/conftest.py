"""What is under interpreted/ needs Triton to be imported under TRITON_INTERPRET=1: it has a process of its own."""

import os

collect_ignore_glob = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["interpreted/*"]
