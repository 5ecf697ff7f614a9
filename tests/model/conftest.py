"""The second opinion: tests marked `torch` run in `test --all`, where PyTorch is installed; else they are left out."""

import os


def pytest_collection_modifyitems(config, items):
    if os.environ.get("REFIMPL_TEST_ALL") == "1":      # then a PyTorch that is missing is a failure
        return
    left_out = [item for item in items if item.get_closest_marker("torch")]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
