"""The form of a network's file, as the page in docs says it."""

import re
from pathlib import Path

from refimpl.layout import Layout
from refimpl.train import flags
from refimpl.world.network import Link, Network

PAGE = Path(__file__).resolve().parents[2] / "docs" / "network.md"


def test_the_example_of_the_page_is_read_as_it_says(tmp_path):
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.S)
    file = tmp_path / "network.toml"
    file.write_text(block)
    assert flags.network(str(file), Layout(dp=8)) == Network(Link(2e-6, 1 / 3e11), Link(1e-5, 1 / 2.5e10), 4, 4, 1e14)
