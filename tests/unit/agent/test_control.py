"""What the runtime says, translated into the protocol, and what it is answered."""

import json
import os
import socket
from dataclasses import asdict

import pytest

from advisor.protocol.measured.messages import NextReply
from advisor.protocol.measured.results import LinkLevel, RaceRules
from advisor.protocol.measured.trials import BlockPlan, RacePlan
from agent.guard.rank_folder import RankFolder, remove_leftover_folders
from agent.sessions.control import ControlSocket, describe_next, parse_result, parse_trouble

FACTS = {
    "backend": "gloo", "device": "cpu", "world_size": 2, "local_world_size": 2, "gradient_bytes": 40,
    "parameter_tensors": 4, "layers": 2, "batch_size_per_rank": 8, "newer": 1,
}  # fmt: skip
RESULT = {"steps": 2, "step_time_s": [0.1, 0.2], "samples_per_step": 16, "wall_s": 0.3}
RULES = RaceRules(give_up_ratio=2.5)
RACE = RacePlan(
    arms=(
        BlockPlan(block_id="b1", trial_number=0, rules=RULES),
        BlockPlan(block_id="b2", trial_number=1, overrides={"nccl_comm_num": 2}, rules=RULES),
    )
)


class FakeDialogue:
    """Remembers what it was told."""

    def __init__(self):
        self.told = []

    def greet(self, hello):
        self.told.append(hello)
        return NextReply(race=RACE)

    def take_race(self, race_id, results):
        self.told.append((race_id, results))
        return NextReply(end_because="Enough.")

    def take_trouble(self, trouble):
        self.told.append(trouble)

    def take_ending(self, ending):
        self.told.append(ending)

    def take_nonsense(self, sentence):
        self.told.append(sentence)


@pytest.fixture
def dialogue():
    return FakeDialogue()


@pytest.fixture
def folder():
    folder = RankFolder("test-agent", None)
    yield folder.path
    folder.remove()


@pytest.fixture
def say(dialogue, folder):
    control = ControlSocket(dialogue, folder, is_ours=lambda pid: pid == os.getpid())
    assert len(str(control.path)) < 100
    line = socket.socket(socket.AF_UNIX)
    line.settimeout(10)
    line.connect(str(control.path))
    reader = line.makefile("rb")

    def send(message, answered=True):
        line.sendall((message if isinstance(message, bytes) else json.dumps(message).encode()) + b"\n")
        if answered:
            return json.loads(reader.readline())
        line.shutdown(socket.SHUT_WR)
        assert reader.read() == b""
        control.wait_silent(5)
        return None

    yield send
    line.close()
    control.close()


def test_hello_is_answered_with_a_race(say, dialogue):
    reply = say(
        {
            "kind": "hello",
            "protocol": 2,
            "facts": FACTS,
            "baseline": {"a": 1, "odd": None},
            "refusals": {"k": "s"},
        }
    )
    assert reply == {
        "kind": "race",
        "race_id": "b1",
        "rules": asdict(RULES),
        "arms": [
            {"block_id": "b1", "overrides": {}},
            {"block_id": "b2", "overrides": {"nccl_comm_num": 2}},
        ],
    }
    assert dialogue.told[0].facts.world_size == 2
    assert dialogue.told[0].baseline == {"a": 1}


def test_race_is_answered_with_the_end(say, dialogue):
    results = {"b1": RESULT, "b2": RESULT | {"same_as": "b1", "steps": 0, "step_time_s": []}}
    assert say({"kind": "race", "race_id": "b1", "results": results}) == {"kind": "end", "reason": "Enough."}
    race_id, heard = dialogue.told[0]
    assert race_id == "b1"
    assert heard["b1"].step_time_s == (0.1, 0.2)
    assert heard["b2"].same_as == "b1"


def test_drift_is_passed_on():
    assert parse_result(RESULT | {"drifted": "They differ."}).drifted == "They differ."


def test_trouble_and_ending_are_not_answered(say, dialogue):
    say({"kind": "something_new"}, answered=False)
    assert dialogue.told == []


def test_script_that_ended_is_noted(say, dialogue):
    say({"kind": "script_ended", "race_id": None, "steps_done": 3, "total_steps": 90}, answered=False)
    assert dialogue.told[0].steps == 90


@pytest.mark.parametrize(
    "message",
    [b"not json", b"[1]", b'{"no": "kind"}', b'{"kind": "hello"}', b'{"kind": "hello", "protocol": 9}',
     b'{"kind": "race", "race_id": "b", "results": {"b": {"steps": "many"}}}', b'{"kind": "race", "results": 7}'],
)  # fmt: skip
def test_nonsense_ends_the_session_with_a_sentence(say, dialogue, message):
    reply = say(message)
    assert reply["kind"] == "end"
    assert "cannot understand" in reply["reason"]
    assert dialogue.told == [reply["reason"]]


@pytest.mark.parametrize("losses", [[1.0, None], [1.0, float("nan")], None])
def test_a_loss_that_is_no_finite_number_is_refused(losses):
    """The ranks leave such losses out, and count them."""
    with pytest.raises(ValueError, match="losses"):
        parse_result(RESULT | {"losses": losses})


def test_end_without_a_plan_carries_its_reason():
    assert describe_next(NextReply(end_because="Done.")) == {"kind": "end", "reason": "Done."}


def test_process_of_another_session_is_turned_away(dialogue, folder):
    control = ControlSocket(dialogue, folder, is_ours=lambda pid: False)
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(10)
        line.connect(str(control.path))
        assert line.recv(1) == b""
    control.close()
    assert dialogue.told == []


def test_texts_of_a_script_are_cleaned_and_shortened():
    trouble = parse_trouble({"code": "x" * 500, "sentence": "\x1b[31mred\x00\n" + "y" * 10**6})
    assert len(trouble.code) == 64
    assert trouble.sentence.startswith("red\ny")
    assert len(trouble.sentence) == 2000
    result = parse_result(RESULT | {"consumed": {f"k{n}": "z" * 10**5 for n in range(1000)}})
    assert len(result.consumed) == 200
    assert max(map(len, result.consumed.values())) == 2000


def test_ranks_folder_of_a_killed_agent_is_removed_and_no_other(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mine, others = RankFolder("a", None), RankFolder("b", None)
    remove_leftover_folders("a")
    assert not mine.path.exists()
    assert others.path.exists()


def test_calibration_becomes_the_protocols_model():
    noise = {"small_batch": 8, "large_batch": 16, "small_square": 2.0, "large_square": 1.5, "steps": 8}
    link = {"level": "across", "ranks": 2, "bytes": 1024, "seconds": 1e-4, "concurrent": 1}
    calibration = {"gradients": [{"bytes": 40, "ready_s": 0.01}], "links": [link], "noise": noise}
    result = parse_result({**RESULT, "given_up": False, "calibration": calibration})
    assert result.calibration is not None
    assert result.calibration.gradients[0].ready_s == 0.01
    assert result.calibration.links[0].level is LinkLevel.ACROSS
    assert result.calibration.noise is not None
    assert parse_result({**RESULT, "given_up": True, "calibration": None}).given_up
    with pytest.raises(ValueError, match="level"):
        parse_result({**RESULT, "calibration": {"links": [{**link, "level": "moon"}]}})


@pytest.mark.parametrize("line", ['{"kind": "script_ended", "total_steps": Infinity}', "[" * 100_000])
def test_nonsense_of_any_kind_is_answered(dialogue, tmp_path, line):
    control = ControlSocket(dialogue, tmp_path, is_ours=lambda _: True)
    with socket.socket(socket.AF_UNIX) as rank:
        rank.connect(str(tmp_path / "s"))
        rank.sendall(line.encode() + b"\n")
        assert json.loads(rank.makefile().readline())["kind"] == "end"
    control.close()
