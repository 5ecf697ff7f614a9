"""The bench of the trainer: what is run and compared with what; how fast it is, only a quiet machine can say."""

import pytest

from refimpl.bench import train
from refimpl.commands.bench import HERE


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, size in (("LAYERS", 1), ("HIDDEN", 8), ("SEQUENCE", 8), ("STEPS", 2)):
        monkeypatch.setattr(train, name, size)


def test_each_variant_is_compared_with_its_partner_of_the_same_round(monkeypatch):
    ran = []
    note = lambda *what: ran.append(what)
    monkeypatch.setattr(train, "at_once", lambda number, batch, *how: note(number, batch, how) or [50.0] * number)
    monkeypatch.setattr(train, "in_a_job", lambda ranks, batch, *how: note(ranks, batch, how) or 45.0 * ranks)
    result = train.bench(rounds=2)
    assert ran == 2 * [(2, 16, ()), (2, 32, ("--dp", "2")), (4, 32, ("--dp", "2", "--tp", "2")),
                       (1, 32, ("--dp", "2", "--tp", "2"))]                  # as much work for each core, each time
    assert result["share_of_ceiling"] == 0.9 and result["local_to_mpi"] == 3.6 and result["trainer_to_plain"] > 0
    assert [row["variant"] for row in result["rows"]] == ["ceiling", "dp 2", "mpi 4", "local 4", "plain", "trainer"]
    text = train.describe(result)
    assert "90% of the ceiling; 90% are claimed" in text and "3.60 times as long as under MPI" in text


def test_a_real_process_says_how_fast_it_was_and_why_it_could_not():
    assert train.at_once(1, 2)[0] > 0
    with pytest.raises(ValueError, match="^heads=8 is not divisible by tp=3"):
        train.at_once(1, 2, "--tp", "3")


@pytest.mark.parametrize("trouble", [ValueError, KeyboardInterrupt])
def test_when_one_fails_or_upon_ctrl_c_the_others_do_not_run_on(trouble, monkeypatch):
    started = []

    class Started(train.subprocess.Popen):
        def __init__(self, command, **options):
            super().__init__([command[0], "-c", "import time; time.sleep(60)"], **options)
            started.append(self)

    def fails(processes):
        raise trouble

    monkeypatch.setattr(train.subprocess, "Popen", Started)
    monkeypatch.setattr(train, "spoken", fails)
    with pytest.raises(trouble):
        train.at_once(2, 2)
    assert len(started) == 2 and all(process.poll() is not None for process in started)


def test_it_is_a_command():
    assert HERE["train"] == "train"
