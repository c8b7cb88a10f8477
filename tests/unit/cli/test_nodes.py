"""What a command on nodes says of how it goes on: words that were typed by hand have to be typed again."""

from pathlib import Path

import pytest

from advisor.cli.tuning.job_options import TuneOptions
from advisor.cli.tuning.nodes import HereOptions, find_nodes, settle_nodes


@pytest.mark.parametrize(
    ("here", "nodes", "environment", "again"),
    [
        (
            HereOptions(here=True, node_rank=1, head="10.0.0.1"), 2, {},
            "tune --here --node-rank N --nodes 2 --head 10.0.0.1 --state /kept/state",
        ),
        (
            HereOptions(here=True), None,
            {"ADVISOR_NODE_RANK": "1", "ADVISOR_NODES": "2", "ADVISOR_HEAD": "10.0.0.1"},
            "tune --here --state /kept/state",
        ),
    ],
    ids=["typed", "from the environment"],
)  # fmt: skip
def test_the_command_that_goes_on_says_again_what_was_said_by_hand(here, nodes, environment, again) -> None:
    place = find_nodes(here, TuneOptions(nodes=nodes), environment)
    kept = HereOptions(here=True, state=Path("/kept/state"))
    assert settle_nodes(place, kept, None, None, environment).again == again
