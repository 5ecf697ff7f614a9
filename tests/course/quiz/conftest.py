"""What the tests of the quiz share: a progress file of their own, and no error that a widget swallows."""

import pytest

from refimpl.course.progress import progress


@pytest.fixture(autouse=True)
def me(tmp_path, monkeypatch):
    """The learner's progress, empty."""
    monkeypatch.setenv("REFIMPL_PROGRESS", str(tmp_path / "progress.sqlite"))
    return progress()


@pytest.fixture(autouse=True)
def nothing_is_swallowed(caplog):
    """A button's click only logs what its callback raises: here the test fails for it."""
    yield
    swallowed = [record.getMessage() for record in caplog.get_records("call") if record.name == "traitlets"]
    assert not [message for message in swallowed if "Exception in" in message], swallowed
