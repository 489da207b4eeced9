"""For all tests, of the core and of plugins."""

import warm_start

warm_start.install()
