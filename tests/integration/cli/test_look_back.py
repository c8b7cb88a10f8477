"""Looking at what a tuning of this machine has left behind, when its server has stopped with it."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from advisor.local.server import local_server
from advisor.services.jobs import submit_job
from advisor.storage import Database
from tests.unit.services.scripted_tuning import make_spec
from tests.unit.services.world import ADA, START

from .conftest import advisor, processes_of


def test_jobs_of_this_machine_are_read_without_a_server_that_runs(
    tmp_path: Path, data_dir: Path, environment: dict[str, str]
) -> None:
    without = advisor("jobs", "--json", environment=environment, cwd=tmp_path)
    assert without.returncode == 5
    assert "No server runs on this machine" in json.loads(without.stderr)["detail"]
    data_dir.mkdir(mode=0o700)
    database = Database(f"sqlite:///{data_dir / 'advisor.db'}", lambda: "unused")
    database.migrate()
    database.close()
    found = advisor("jobs", "--json", environment=environment, cwd=tmp_path)
    assert (found.returncode, json.loads(found.stdout)) == (0, {"items": []}), found.stderr
    assert not processes_of(data_dir)
    # Each of several at once starts a server or uses another's that lasts: none is cut off.
    with ThreadPoolExecutor(3) as pool:
        looks = [pool.submit(advisor, "jobs", environment=environment, cwd=tmp_path) for _ in range(3)]
    assert [look.result().stderr for look in looks if look.result().returncode] == []


def test_who_asks_for_more_than_an_interrupted_job_has_is_told_how_it_goes_on(
    tmp_path: Path, data_dir: Path, environment: dict[str, str]
) -> None:
    data_dir.mkdir(mode=0o700)
    database = Database(f"sqlite:///{data_dir / 'advisor.db'}", lambda: "j1")
    database.migrate()
    with database.begin() as work:
        submit_job(work, make_spec(), ADA, None, START)
    database.close()
    for command, code in (("advice", 101), ("watch", 5)):
        found = advisor(command, "last", environment=environment, cwd=tmp_path)
        assert found.returncode == code, found.stderr
        assert "advisor tune --resume last" in " ".join(found.stderr.split())


def test_looking_answers_as_a_server_does_and_changes_nothing(
    tmp_path: Path, data_dir: Path, environment: dict[str, str]
) -> None:
    data_dir.mkdir(mode=0o700)
    database = Database(f"sqlite:///{data_dir / 'advisor.db'}", lambda: "j1")
    database.migrate()
    with database.begin() as work:
        submit_job(work, make_spec(), ADA, None, START)
    database.close()
    before = (data_dir / "advisor.db").read_bytes()
    looks = (("jobs", "--json"), ("show", "last", "--json"), ("logs", "j1"), ("advice", "j1", "--json"))
    alone = [advisor(*look, environment=environment, cwd=tmp_path) for look in looks]
    assert [look.returncode for look in alone] == [0, 0, 0, 101]
    assert advisor("show", "nothing", environment=environment, cwd=tmp_path).returncode == 102
    assert (data_dir / "advisor.db").read_bytes() == before
    with local_server(data_dir, environment, lambda _: None):
        served = [advisor(*look, environment=environment, cwd=tmp_path) for look in looks[:3]]
    # A server may go on with the job meanwhile: what it is stays.
    assert json.loads(served[0].stdout)["items"][0].keys() == json.loads(alone[0].stdout)["items"][0].keys()
    assert json.loads(served[1].stdout)["spec"] == json.loads(alone[1].stdout)["spec"]
    assert served[2].stdout == alone[2].stdout


def test_a_database_of_an_earlier_release_is_brought_up_to_date_before_it_is_looked_at(
    tmp_path: Path, data_dir: Path, environment: dict[str, str]
) -> None:
    data_dir.mkdir(mode=0o700)
    (data_dir / "advisor.db").touch(mode=0o600)
    found = advisor("jobs", "--json", environment=environment, cwd=tmp_path)
    assert (found.returncode, json.loads(found.stdout)) == (0, {"items": []}), found.stderr
    assert not processes_of(data_dir)
