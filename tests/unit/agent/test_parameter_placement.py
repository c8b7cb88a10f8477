"""Parameter servers without torch: blocks cover every variable once, rules put them where they say, options fit."""

import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from parameter_server.options import list_idle, read_options
from parameter_server.placement import (
    RULES,
    Variable,
    choose_servers,
    cut_into_blocks,
    find_largest_share,
    lay_out_nodes,
)

LAYERS = [
    Variable("0.weight", 256 * 1024, 256),
    Variable("0.bias", 1024),
    Variable("2.weight", 1024 * 256, 1024),
    Variable("2.bias", 256),
    Variable("4.weight", 256 * 64, 256),
    Variable("4.bias", 64),
    Variable("6.weight", 64, 64),
    Variable("6.bias", 1),
]
variables = st.lists(
    st.builds(
        lambda number, rows, width: Variable(f"v{number}", rows * width, width),
        st.integers(0, 99),
        st.integers(1, 300),
        st.integers(1, 300),
    ),
    min_size=1,
    max_size=8,
)


def share_of(servers: int, min_block: int, rule: str) -> float:
    blocks = cut_into_blocks(LAYERS, servers, min_block)
    return find_largest_share(blocks, choose_servers(blocks, servers, rule), servers)


@given(variables, st.integers(1, 6), st.sampled_from([0, 1, 64, 8192]))
def test_blocks_cover_everything_once_in_whole_rows(
    all_of: list[Variable], servers: int, min_block: int
) -> None:
    blocks = cut_into_blocks(all_of, servers, min_block)
    edges = [0] + [block.stop for block in blocks]
    assert [block.start for block in blocks] == edges[:-1]
    assert edges[-1] == sum(variable.elements for variable in all_of)
    starts, begin = {block.start for block in blocks}, 0
    for variable in all_of:
        inside = [start - begin for start in starts if begin <= start < begin + variable.elements]
        assert 0 in inside
        assert all(start % variable.row == 0 for start in inside)
        assert len(inside) <= (servers if min_block else 1)
        begin += variable.elements


@given(variables, st.integers(1, 6), st.sampled_from(RULES))
def test_every_block_has_a_server_and_shares_have_their_bounds(
    all_of: list[Variable], servers: int, rule: str
) -> None:
    blocks = cut_into_blocks(all_of, servers, 64)
    homes = choose_servers(blocks, servers, rule)
    assert len(homes) == len(blocks)
    assert all(0 <= home < servers for home in homes)
    assert 1 / servers - 1e-9 <= find_largest_share(blocks, homes, servers) <= 1


@pytest.mark.parametrize(
    ("min_block", "rule", "share"),
    [
        # Weights and biases alternate, so that round robin gives every weight to one of two servers.
        (0, "round_robin", 0.9975),
        (8192, "round_robin", 0.5007),
        (262_144, "round_robin", 0.9975),
        (0, "by_bytes", 0.5138),
    ],
)
def test_share_of_two_servers_is_that_of_the_example(min_block: int, rule: str, share: float) -> None:
    assert share_of(2, min_block, rule) == pytest.approx(share, abs=1e-4)


def test_small_variables_stay_whole_and_large_ones_are_cut_for_each_server() -> None:
    names = [block.name for block in cut_into_blocks(LAYERS, 3, 8192)]
    assert names[:4] == ["0.weight.block0", "0.weight.block1", "0.weight.block2", "0.bias"]
    assert [name for name in names if name.startswith("4.weight")] == ["4.weight.block0", "4.weight.block1"]


def test_hash_goes_by_the_blocks_name() -> None:
    blocks = cut_into_blocks(LAYERS, 2, 8192)
    assert choose_servers(blocks, 2, "hash_name") == [zlib.crc32(b.name.encode()) % 2 for b in blocks]


@pytest.mark.parametrize(
    ("nodes", "trainer_nodes", "place", "expected"),
    [
        (1, 1, "apart", ([0, 0, 0, 0], [0, 0])),
        (4, 2, "apart", ([0, 0, 1, 1], [2, 3])),
        (4, 2, "together", ([0, 0, 1, 1], [0, 1])),
        (3, 2, "apart", ([0, 0, 1, 1], [2, 2])),
        (2, 2, "apart", ([0, 0, 1, 1], [0, 1])),
    ],
)
def test_roles_are_laid_out_on_nodes(
    nodes: int, trainer_nodes: int, place: str, expected: tuple[list[int], list[int]]
) -> None:
    assert lay_out_nodes(4, 2, nodes, trainer_nodes, place) == expected


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--architecture hybrid --table dense", "keeps the table's rows on servers"),
        ("--architecture collective --mode geo", "an allreduce is synchronous"),
        ("--servers 0", "--servers: 1 or more"),
        ("--nodes 2", "several nodes need --master-port"),
        ("--slow-trainer 1", "a colon, and milliseconds"),
    ],
)
def test_contradictions_are_refused(
    words: str, sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["train", *words.split()])
    with pytest.raises(SystemExit) as refused:
        read_options()
    assert refused.value.code == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "idle"),
    [
        ("--servers 2 --mode geo --trainers 4", set()),
        ("--servers 1 --table dense", {"geo_k", "prefetch", "placement", "min_block", "reduce_in_node"}),
        ("--architecture hybrid --servers 2 --trainers 4", {"geo_k", "placement", "min_block"}),
    ],
)
def test_options_without_effect_are_told(words: str, idle: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Two trainers or four on one node, so that a sum inside the node has an effect in all but the second case.
    nodes = ["--nodes", "4", "--trainer-nodes", "2", "--master-port", "1"]
    monkeypatch.setattr(sys, "argv", ["train", *nodes, *words.split()])
    assert set(list_idle(read_options())) == idle
