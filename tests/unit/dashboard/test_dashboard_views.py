"""View models: what a page says about a job in each of its states."""

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from starlette.testclient import TestClient

from advisor.dashboard.formats import duration
from advisor.dashboard.views.chips import chip_for_job, chip_for_verdict
from advisor.dashboard.views.evidence import judge_finding
from advisor.dashboard.views.job.page import JobActions, Overview, list_actions, view_overview
from advisor.dashboard.views.job.story import list_facts, list_failures, list_idle
from advisor.dashboard.views.job.verdict import place_stage, view_verdict
from advisor.dashboard.views.server.jobs import tell_gain, tell_gain_range, view_job_line, view_job_lines
from advisor.dashboard.views.server.site import group_knobs, order_agents, view_log
from advisor.dashboard.views.trials.page import view_trial_page
from advisor.exporters.own_lines import list_own_lines
from advisor.protocol.answers.advice import Advice, Verdict
from advisor.protocol.answers.moods import Mood, MoodCause, Moods, MoodSpan, say_moods
from advisor.protocol.asked.jobs import JobState, Priority, Stage
from advisor.protocol.knobs.catalogue import CATALOGUE
from advisor.protocol.knobs.changes import Changes
from advisor.protocol.measured.spending import measure_wall_s
from advisor.protocol.measured.trials import JobHistory, Outcome
from advisor.protocol.views import LogChunk, Role
from advisor.services.tokens import Principal
from tests.samples.evidence import leave_undecided
from tests.samples.job import (
    Story,
    keep_defaults,
    make_agents,
    make_finished_story,
    make_running_story,
)
from tests.samples.stored import NOW, Clock, Stories, read_words

ADA, VIC = Principal("2", Role.SUBMITTER, "ada"), Principal("3", Role.VIEWER, "vic")
RUNNING, FINISHED = make_running_story(NOW), make_finished_story(NOW)


SignIn = Callable[[str], TestClient]


def show(story: Story = FINISHED, **changes: object) -> Overview:
    story = replace(story, job=story.job.model_copy(update=changes))
    return view_overview(story.job, story.history, story.advice, story.events, NOW)


def may(story: Story = FINISHED, person: Principal = ADA, **changes: object) -> JobActions:
    return list_actions(story.job.model_copy(update=changes), person, story.advice)


def test_verdict_stands_with_its_bound_first() -> None:
    card = show().verdict
    assert (card.tone, card.lead, card.figure) == ("good", "at least", "+13.9 %")
    assert card.interval == "most likely +16.1 %, 95 % interval +13.9 … +18.2 %"
    assert card.sentence == "more throughput, confirmed in 8 interleaved rounds in 2 launches"
    assert card.chip is not None
    assert card.chip.word == "change"
    assert ("pays back after", "5 h 13 min of training") in card.cost


def test_verdict_that_excludes_a_worthwhile_gain_keeps_the_settings() -> None:
    page = show(replace(FINISHED, advice=keep_defaults(FINISHED.advice)))
    assert (page.verdict.tone, page.verdict.figure) == ("muted", "Keep your settings")
    assert page.verdict.sentence.startswith(
        "The strategy that looked best, num_threads 2, brings less than 2 %: "
    )
    assert page.verdict.sentence.endswith("gains up to +2.6 % are not excluded.")
    assert page.verdict.next_steps[0] == "Change nothing."
    assert page.verdict.command == ""
    assert page.verdict.bars == ()
    assert page.breakdown is not None


def test_undecided_verdict_has_its_own_look_and_the_command_that_continues() -> None:
    story = replace(FINISHED, advice=leave_undecided(FINISHED.advice))
    card, actions = show(story).verdict, may(story)
    assert (card.tone, card.figure) == ("caution", "Undecided")
    assert card.chip is not None
    assert (card.chip.word, card.chip.icon) == ("undecided", "clock")
    assert card.sentence.startswith("Probably faster (1.3x measured, 95 % CI 0.94x … 1.9x)")
    assert card.command == "advisor tune --continue sample --minutes 10"
    assert (actions.may_continue, actions.continue_minutes) == (True, 10)


def test_priority_is_shown_where_it_is_not_the_usual_one(stories: Stories, sign_in: SignIn) -> None:
    client = sign_in("adv_viewer_3_x")
    assert " priority" not in client.get("/jobs/sample/log").text
    spec = FINISHED.job.spec.model_copy(update={"priority": Priority.HIGH})
    stories.tell(replace(FINISHED, job=FINISHED.job.model_copy(update={"spec": spec})))
    assert "· high priority" in client.get("/jobs/sample/log").text


def test_three_verdicts_differ_in_word_icon_and_tone() -> None:
    chips = [chip_for_verdict(verdict) for verdict in Verdict]
    for part in ("word", "icon", "tone"):
        assert len({getattr(chip, part) for chip in chips}) == len(chips)


def test_only_those_who_may_see_the_continue_button_and_only_when_a_job_has_ended() -> None:
    assert may(FINISHED).may_continue
    assert may(RUNNING, state=JobState.FAILED).may_continue
    assert not may(RUNNING).may_continue
    assert not may(RUNNING, state=JobState.CANCELLED, started_at=None).may_continue
    assert not may(FINISHED, VIC).may_continue


def test_running_job_tells_its_best_trial_as_the_terminal_does() -> None:
    best = RUNNING.job.standing
    assert best is not None
    card = show(RUNNING).verdict
    assert f"Best so far: trial {best.trial_number}, {best.describe()}, the best of those" in card.sentence
    assert "measured with 81 % probability." in card.sentence
    assert (card.tried, card.most) == (10, 24)


def test_failed_job_gives_its_reason_and_a_next_step() -> None:
    card = show(
        replace(RUNNING, history=JobHistory()), state=JobState.FAILED, state_reason="No DDP was built."
    ).verdict
    assert card.tone == "bad"
    assert card.why == ("No DDP was built.",)
    assert "advisor logs sample" in card.next_steps[0]


def test_only_those_who_may_see_the_cancel_button_and_only_while_it_helps() -> None:
    assert may(RUNNING).may_cancel
    assert may(RUNNING, state=JobState.PAUSED).may_cancel
    assert not may(RUNNING, VIC).may_cancel
    assert not may(RUNNING, state=JobState.CANCELLING).may_cancel
    assert not may(FINISHED).may_cancel


def test_yours_and_advised_stand_on_one_axis() -> None:
    advice = FINISHED.advice
    assert advice is not None
    assert advice.gain is not None
    yours, advised = show().verdict.bars
    assert advised.high == pytest.approx(100.0)
    assert advised.share / yours.share == pytest.approx(advice.gain.ratio, rel=0.01)
    assert advised.low == pytest.approx(yours.share * advice.gain.low)
    assert yours.low is None


def test_rates_of_every_race_stand_in_their_launch() -> None:
    figure = show().rates
    assert figure is not None
    races = {(b.session_id, b.race) for b in FINISHED.history.done_blocks()}
    assert len(figure.table.rows) == len(races)
    assert figure.svg.count('<rect class="band"') == len({session for session, _ in races})
    told = FINISHED.advice.changes.describe()
    assert told in {row[4] for row in figure.table.rows}
    assert "slow" not in figure.svg


def test_moods_are_told_below_the_headline_and_shaded(stories: Stories, sign_in: SignIn) -> None:
    block = next(b for b in FINISHED.history.done_blocks() if b.trial_number == 0)
    span = MoodSpan(
        session_id=block.session_id, began_at=block.issued_at, ended_at=block.finished_at, samples_per_s=20.0
    )
    mood = {"share": 0.5, "longest_step_s": 0.1}
    moods = Moods(
        slow=Mood(samples_per_s=20, low=20, high=20, spans=(span,), **mood),
        fast=Mood(samples_per_s=90, low=90, high=90, spans=(), **mood),
        is_within_launch=True, cause=MoodCause.UNKNOWN,
    )  # fmt: skip
    story = replace(FINISHED, advice=FINISHED.advice.model_copy(update={"moods": moods}))
    figure = show(story).rates
    assert figure is not None
    assert figure.svg.count('<rect class="slow" x=') == 1
    assert [row[-1] for row in figure.table.rows].count("slow") == 1
    assert show(story).verdict.moods == say_moods(moods)
    stories.tell(story)
    page = sign_in("adv_viewer_3_x").get("/jobs/sample").text
    assert page.index('class="headline') < page.index('class="moods"') < page.index('class="sentence"')


def test_running_job_tells_its_own_rate_the_step_and_what_is_left() -> None:
    spec = RUNNING.job.spec
    budget = spec.budget.model_copy(update={"max_seconds": 1e5})
    page = show(RUNNING, spec=spec.model_copy(update={"budget": budget}))
    told = dict(page.verdict.cost)
    assert "samples/s" in told["your settings"]
    left_s = 1e5 - measure_wall_s(RUNNING.history.sessions, NOW)
    assert told["left of the budget"] == duration(left_s)
    assert page.breakdown is not None
    assert page.breakdown.table.columns == ("phase", "yours ms")


def test_ladder_is_apart_from_what_changed(sign_in: SignIn) -> None:
    page = sign_in("adv_viewer_3_x").get("/jobs/sample").text
    changed = re.search(r'<table class="stacks changes">.*?</table>', page, re.S).group(0)
    assert set(re.findall(r"<th scope=\"row\">.*?<code>(\w+)</code>", changed)) == set(
        FINISHED.advice.changes
    )
    rungs = re.search(r'<ul class="rungs">.*?</ul>', page, re.S).group(0)
    assert re.findall(r"<strong>(.*?)</strong>", rungs) == ["+19.7 %", "unconfirmed"]


def test_a_ladder_of_which_nothing_was_tried_is_left_out(stories: Stories, sign_in: SignIn) -> None:
    rungs = tuple(
        rung.model_copy(update={"changes": Changes(), "gain": None}) for rung in FINISHED.advice.ladder
    )
    stories.tell(replace(FINISHED, advice=FINISHED.advice.model_copy(update={"ladder": rungs})))
    assert "Left on the table" not in sign_in("adv_viewer_3_x").get("/jobs/sample").text


def test_sharding_is_told_with_the_ranks_that_share_a_copy() -> None:
    def tell(**facts: object) -> str | None:
        own = FINISHED.job.facts
        assert own is not None
        job = FINISHED.job.model_copy(update={"facts": own.model_copy(update=facts)})
        return dict(list_facts(job)).get("sharding")

    assert tell() is None
    assert tell(sharding="fully_shard") == "fully_shard"
    assert tell(sharding="fully_shard", shard_ranks=16, shard_copies=1) == "fully_shard over 16 ranks"
    assert (
        tell(sharding="fully_shard", shard_ranks=8, shard_copies=2)
        == "fully_shard over 8 ranks, 2 copies (HSDP)"
    )


def test_failures_have_a_sentence_a_hint_and_a_clean_log(sign_in: SignIn) -> None:
    assert [failed.number for failed in list_failures(FINISHED.history)] == [6]
    assert [idle.number for idle in list_idle(FINISHED.history)] == [8]
    page = sign_in("adv_viewer_3_x").get("/jobs/sample/log").text
    failures = re.search(r'<ul class="failures">.*?</ul>', page, re.S).group(0)
    assert "\x1b" not in failures
    assert "CUDA out of memory" in failures
    assert "The search keeps away from it; there is nothing to do." in failures
    assert "Without effect" in page
    assert "That is no failure" in page


def test_log_names_a_launch_by_its_number(sign_in: SignIn) -> None:
    page = sign_in("adv_viewer_3_x").get("/jobs/sample/log").text
    assert '<p class="quiet">launch 1</p>' in page
    assert "launch s1" not in page


def test_launch_that_failed_is_told_as_one(stories: Stories, sign_in: SignIn) -> None:
    failed = FINISHED.history.sessions[0].model_copy(update={"outcome": Outcome.LOST, "reason": "Gone <b>."})
    stories.tell(replace(FINISHED, history=JobHistory(sessions=(failed,))))
    page = read_words(sign_in("adv_viewer_3_x").get("/jobs/sample/log").text)
    assert f"Launch {failed.generation} Gone <b>." in page
    assert "It is measured again; see the agents if it keeps happening." in page


def test_trial_page_shows_the_evidence_and_the_slowest_rank(sign_in: SignIn) -> None:
    page = view_trial_page(FINISHED.history.trial(5), FINISHED.history)
    assert page.evidence["fuse_grad_size_in_MB"] == "read back from DDP's own log as 96.0"
    assert page.late_rank == 3
    assert len(page.ranks) == 16
    shown = sign_in("adv_viewer_3_x").get("/jobs/sample/trials/5").text
    assert '<td class="nowrap">96 MB</td>' in shown
    assert "9 in the order that the framework itself tells" in shown
    assert '<td class="num nowrap">58 of 60</td>' in shown
    assert shown.count('<th scope="row" class="num">') >= 16


def test_trial_page_says_that_a_knob_was_not_in_force() -> None:
    block = next(block for block in FINISHED.history.blocks if block.trial_number == 1)
    result = replace(block.result, consumed={}, not_consumed={"fuse_grad_size_in_MB": "DDP ignored it."})
    history = FINISHED.history.model_copy(update={"blocks": (block.model_copy(update={"result": result}),)})
    page = view_trial_page(history.trial(1), history)
    assert page.evidence == {"fuse_grad_size_in_MB": "not in force: DDP ignored it."}


def test_trial_without_a_block_has_no_figure() -> None:
    page = view_trial_page(RUNNING.history.trial(10), RUNNING.history)
    assert page.phases is None
    assert page.steps is None
    assert page.estimate is None
    assert page.is_measuring


def test_job_line_of_each_kind() -> None:
    def tell(advice: Advice) -> tuple[str, str]:
        line = view_job_line(FINISHED.job, advice, None, NOW)
        return tell_gain(line), tell_gain_range(line)

    assert tell(FINISHED.advice) == ("at least +13.9 %", "most likely +16.1 %")
    assert tell(keep_defaults(FINISHED.advice)) == ("keep", "at most +1.7 %")
    assert tell(leave_undecided(FINISHED.advice)) == ("undecided", "0.94x … 1.9x")
    running = view_job_line(RUNNING.job, None, RUNNING.history, NOW)
    assert (tell_gain(running), tell_gain_range(running), running.trials) == ("measuring", "", 10)
    queued = RUNNING.job.model_copy(update={"state": JobState.QUEUED})
    assert tell_gain(view_job_line(queued, None, None, NOW)) == "–"


def test_list_of_jobs_colours_a_gain_as_its_verdict(stories: Stories, sign_in: SignIn) -> None:
    client = sign_in("adv_viewer_3_x")
    assert 'gain-good">at least +13.9 %' in client.get("/jobs").text
    assert 'gain-busy">measuring' in client.get("/jobs").text
    stories.tell(replace(FINISHED, advice=leave_undecided(FINISHED.advice)))
    assert 'gain-caution">undecided' in client.get("/jobs").text


def test_job_lines_fetch_no_history_where_the_advice_has_the_counts() -> None:
    asked: list[str] = []

    def look_up_history(job_id: str) -> JobHistory:
        asked.append(job_id)
        return RUNNING.history

    running = RUNNING.job.model_copy(update={"id": "busy"})
    view_job_lines([FINISHED.job, running], lambda _: FINISHED.advice, look_up_history, NOW)
    assert asked == ["busy"]


def test_every_knob_is_on_its_page_once() -> None:
    names = [row.name for _, rows in group_knobs() for row in rows]
    assert sorted(names) == sorted(CATALOGUE)


def test_connected_agents_come_first() -> None:
    assert [row.name for row in order_agents(make_agents(NOW))] == [
        "laptop",
        "node01",
        "node02",
        "node09",
    ]


def test_event_of_another_day_stands_below_its_date(stories: Stories, sign_in: SignIn, clock: Clock) -> None:
    moments = [timedelta(days=-2, hours=-1), timedelta(days=-2), timedelta(minutes=-30), timedelta(0)]
    events = tuple(
        FINISHED.events[0].model_copy(update={"seq": seq, "at": NOW + moment})
        for seq, moment in enumerate(moments, start=1)
    )
    stories.tell(replace(FINISHED, events=events))
    client = sign_in("adv_viewer_3_x")
    days = re.compile(r'<li class="day"><time datetime="([0-9-]+)">')
    assert days.findall(client.get("/jobs/sample/log").text) == ["2026-11-18"]
    clock.pass_(timedelta(days=1))
    client = sign_in("adv_viewer_3_x")
    assert days.findall(client.get("/jobs/sample/log").text) == ["2026-11-20", "2026-11-18"]


def test_what_a_value_rests_on_is_told_in_words(sign_in: SignIn) -> None:
    page = sign_in("adv_viewer_3_x").get("/jobs/sample").text
    assert "timed in PyTorch" in page
    assert "translated" not in page


def test_log_joins_what_one_agent_wrote_in_a_row() -> None:
    def part(seq: int, agent: str) -> LogChunk:
        return LogChunk(seq=seq, session_id="s", agent=agent, text=f"{seq}\n")

    blocks = view_log([part(1, "a"), part(2, "a"), part(3, "b"), part(4, "a")])
    assert [(block.agent, block.text) for block in blocks] == [("a", "1\n2\n"), ("b", "3\n"), ("a", "4\n")]


def test_every_state_of_a_job_has_a_chip_of_its_own() -> None:
    assert [chip_for_job(state).word for state in JobState] == [state.value for state in JobState]


def test_evidence_stands_beside_the_verdict(sign_in: SignIn) -> None:
    findings = FINISHED.advice.diagnosis.findings
    assert [judge_finding(found).word for found in findings] == ["bounds the step"] + [
        "does not bound it"
    ] * 2
    page = sign_in("adv_viewer_3_x").get("/jobs/sample").text
    found = re.findall(r'<tr>\s*<th scope="row"><a href="/knobs#.*?</tr>', page, re.S)
    rows = {row.split("#")[1].split('"')[0]: row for row in found}
    assert '+18.4 ms<span class="sub">+15.1 … +21.6</span>' in rows["fuse_grad_size_in_MB"]
    assert '<td class="num nowrap none">–</td>' in rows["nccl_comm_num"]
    words = read_words(page)
    assert "scaling efficiency before85 %" in words
    assert "scaling efficiency after98 %" in words
    assert words.count("30 steps: no difference shown, left as you have it.") == 1


def test_overview_says_what_to_paste_and_counts_failures_by_kind() -> None:
    page = show()
    assert page.verdict.command.splitlines() == [
        "advisor export sample --output advisor-sample",
        "bash advisor-sample/run.sh",
    ]
    assert page.verdict.next_steps[0].startswith("Use the strategy: advisor export sample")
    assert page.stages == ()
    assert [(chip.word, count) for chip, count in page.failures] == [("out of memory", 1)]


def test_overview_of_a_live_job_tells_the_latest_and_no_more() -> None:
    events = tuple(RUNNING.events[0].model_copy(update={"seq": seq}) for seq in range(1, 40))
    assert len(show(replace(RUNNING, events=events)).latest) == 6
    assert show().latest == ()


def test_every_stage_has_its_words() -> None:
    for stage in Stage:
        page = show(RUNNING, stage=stage)
        job = RUNNING.job.model_copy(update={"stage": stage})
        assert [place_stage(step, job) for step in page.stages].count("now") == 1
        assert page.verdict.next_steps


def test_a_failed_job_stops_where_it_stood() -> None:
    job = RUNNING.job.model_copy(update={"stage": Stage.PROBE, "state": JobState.FAILED})
    assert [place_stage(stage, job) for stage in Stage] == ["now", *["ahead"] * 4]


def test_stages_of_a_job_that_finished_are_past() -> None:
    assert {place_stage(stage, FINISHED.job) for stage in Stage} == {"past"}


def test_stalls_are_part_of_the_breakdown() -> None:
    rows = [row[0] for row in show().breakdown.table.rows]
    assert "stalls" in rows
    calm = FINISHED.advice.model_copy(
        update={"phases_before": replace(FINISHED.advice.phases_before, stalls_s=0.0)}
    )
    assert "stalls" not in [row[0] for row in show(replace(FINISHED, advice=calm)).breakdown.table.rows]


def test_the_answer_has_the_lines_for_the_users_own_script() -> None:
    advice = FINISHED.advice
    assert advice is not None
    card = view_verdict(FINISHED.job, FINISHED.history, advice, FINISHED.job.created_at)
    told = list_own_lines(advice, FINISHED.job)
    assert told
    assert {line.text for line in card.lines} == {line.text for line in told}
