"""What only `start.py test --all` runs: `pytestmark = only_all`, or `@only_all`."""

import os

import pytest

ALL = os.environ.get("REFIMPL_TEST_ALL") == "1"
only_all = pytest.mark.skipif(not ALL, reason="takes long: start.py test --all")
