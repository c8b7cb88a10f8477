"""A server whose disk is full: it says so in words, keeps every report that it accepted, and takes the rest later."""

import sqlite3
from collections.abc import Callable

from sqlalchemy import event

from advisor.protocol.measured.trials import BlockState
from tests.integration.server.served import FakeAgent, Served, start_gang, wait_for
from tests.unit.services.scripted_tuning import make_result

MOST_PAGES = 2**31 - 2


def limit_pages(server: Served) -> Callable[[int], None]:
    """Return what sets how far the database's file may grow, for every connection that the server makes."""
    database, limit = server.app.state.context.database, [MOST_PAGES]

    def tell(driver: sqlite3.Connection, _: object) -> None:
        driver.execute(f"PRAGMA max_page_count = {limit[0]}")

    event.listen(database._engine, "connect", tell)

    def set_limit(pages: int) -> None:
        limit[0] = pages
        with database._turn:
            database._engine.dispose()

    return set_limit


def test_agent_is_told_of_a_full_disk_and_every_report_counts_once_there_is_room_again(
    start: Callable[..., Served],
) -> None:
    server = start()
    server.submit()
    agent = FakeAgent(server, "one")
    start_gang(agent)
    agent.hello()
    set_limit = limit_pages(server)
    race = agent.next()["race"]
    assert agent.report(race).status_code == 200
    accepted = [arm["block_id"] for arm in race["arms"]]
    set_limit(1)
    news = 100
    log = "a line that takes room\n" * 500
    while (reply := agent.say("beat", state="running", news=news, log=log)).status_code == 200:
        news += 1
        assert news < 300, "the file does not grow any more"
    for answer in (reply, server.http.get("/readyz")):
        assert answer.status_code == 503
        assert answer.json()["code"] == "disk_full"
        assert answer.json()["detail"] == "The disk of the server's database is full."
        assert "Free space on it" in answer.json()["hint"]
        assert "retry-after" in answer.headers
    assert server.http.get("/livez").status_code == 200
    set_limit(MOST_PAGES)
    # The agent says again what was refused, and goes on where it was.
    assert agent.say("beat", state="running", news=news, log=log).status_code == 200
    race = wait_for(lambda: agent.next()["race"], "the next race")
    assert agent.report(race).status_code == 200
    accepted += [arm["block_id"] for arm in race["arms"]]
    assert agent.place is not None
    blocks = {block.id: block for block in server.history(agent.place.job_id).blocks}
    assert {blocks[one].state for one in accepted} == {BlockState.DONE}
    assert blocks[accepted[0]].result == make_result(0.1)
