"""The testbed as its user writes it: what is understood, and how everything else is refused."""

import pytest
from pydantic import ValidationError

from advisor.protocol.asked.jobs import JobSpec
from advisor.protocol.nodes.testbed import Testbed, parse_testbed


@pytest.mark.parametrize(
    ("text", "bits_per_s", "spelled"),
    [
        ("nodes=2,rate=1gbit", 10**9, "nodes=2,rate=1gbit"),
        (" rate = 1000Mbit , nodes = 3 ", 10**9, "nodes=3,rate=1gbit"),
        ("nodes=2,rate=2.5gbit,cpus=1", 2_500_000_000, "nodes=2,rate=2500mbit,cpus=1"),
        ("nodes=2,rate=64kbit,name=lab", 64_000, "nodes=2,rate=64kbit,name=lab"),
    ],
)
def test_testbed_is_read_and_spelled_in_one_way(text: str, bits_per_s: int, spelled: str) -> None:
    testbed = parse_testbed(text)
    assert testbed.bits_per_s == bits_per_s
    assert str(testbed) == spelled
    assert parse_testbed(spelled) == testbed


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "''"),
        ("nodes=2", "rate"),
        ("rate=1gbit", "nodes"),
        ("nodes=1,rate=1gbit", "nodes"),
        ("nodes=two,rate=1gbit", "nodes"),
        ("nodes=2,rate=1gb", "'1gb'"),
        ("nodes=2,rate=-1gbit", "'-1gbit'"),
        ("nodes=2,rate=1kbit", "1kbit"),
        ("nodes=2,rate=200gbit", "200gbit"),
        ("nodes=2,rate=1gbit,cpus=0", "cpus"),
        ("nodes=2,rate=1gbit,delay=10ms", "delay=10ms"),
        ("nodes=2,rate=1gbit,colour=red", "colour=red"),
        ("nodes=2,nodes=3,rate=1gbit", "nodes is given twice"),
        ("2,1gbit", "'2'"),
    ],
)
def test_refusal_names_the_field_and_shows_what_works(text: str, named: str) -> None:
    with pytest.raises(ValueError) as refused:
        parse_testbed(text)
    assert named in str(refused.value)
    assert "nodes=2,rate=1gbit" in str(refused.value)


def test_job_and_its_testbed_have_the_same_number_of_nodes() -> None:
    workload = {"command": ("torchrun", "train.py")}
    body = {"workload": workload, "nodes": 2, "testbed": {"nodes": 3, "rate": "1gbit"}}
    with pytest.raises(ValidationError, match=r"nodes is 2 and testbed.nodes 3"):
        JobSpec.model_validate(body)


def test_named_testbed_serves_those_who_want_it_or_any_of_its_shape() -> None:
    lab = parse_testbed("nodes=2,rate=1gbit,name=lab")
    assert lab.serves(lab)
    assert lab.serves(parse_testbed("nodes=2,rate=1gbit"))
    assert not lab.serves(parse_testbed("nodes=2,rate=1gbit,name=other"))
    assert not lab.serves(Testbed(nodes=2, rate="2gbit"))
