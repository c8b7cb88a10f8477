"""The filters by which templates show the objects of the protocol: as chips, in words and as numbers."""

from collections.abc import Callable, Mapping

from advisor.dashboard import formats
from advisor.dashboard.views.chips import (
    STAGES,
    chip_for_agent,
    chip_for_block,
    chip_for_effect,
    chip_for_job,
    chip_for_outcome,
    chip_for_session,
    chip_for_trial,
    chip_for_verdict,
)
from advisor.dashboard.views.evidence import (
    describe_changes,
    describe_throttling,
    describe_traffic,
    interval,
    judge_finding,
    likely,
    show_knob,
    spread,
)
from advisor.dashboard.views.gain_bars import draw_gain_bars
from advisor.dashboard.views.job.advice import (
    describe_buckets,
    describe_stalls,
    find_reason,
    judge_run,
    list_scaling,
)
from advisor.dashboard.views.job.forecasts import name_cluster
from advisor.dashboard.views.job.new_job import list_limits, say_values
from advisor.dashboard.views.job.story import hint_at
from advisor.dashboard.views.job.verdict import place_stage
from advisor.dashboard.views.server.jobs import name_job, tell_gain, tell_gain_range
from advisor.dashboard.views.server.node_findings import list_findings
from advisor.dashboard.views.server.site import (
    describe_choice,
    describe_hardware,
    describe_links,
    describe_range,
    describe_software,
    find_objection,
    judge_token,
)
from advisor.dashboard.views.trials.page import last_loss
from advisor.protocol.answers.advice import name_bound, name_provenance
from advisor.protocol.gains import spell_gain
from advisor.protocol.knobs.paddle import describe_in_paddle
from advisor.protocol.nodes.cluster import spell_memory
from advisor.tuning.history.study import name_study, place_study

FILTERS: Mapping[str, Callable[..., object]] = {
    "age": formats.age,
    "agent_chip": chip_for_agent,
    "block_chip": chip_for_block,
    "bound": name_bound,
    "buckets": describe_buckets,
    "changes": describe_changes,
    "choice": describe_choice,
    "cluster": name_cluster,
    "device_hours": formats.device_hours,
    "duration": formats.duration,
    "effect_chip": chip_for_effect,
    "finding_chip": judge_finding,
    "findings": list_findings,
    "gain": spell_gain,
    "gain_bars": draw_gain_bars,
    "hardware": describe_hardware,
    "hint": hint_at,
    "interval": interval,
    "job_chip": chip_for_job,
    "job_gain": tell_gain,
    "job_gain_bars": lambda lines: draw_gain_bars([line.advice and line.advice.gain for line in lines]),
    "job_gain_range": tell_gain_range,
    "last_loss": last_loss,
    "likely": likely,
    "limits": list_limits,
    "links": describe_links,
    "memory": spell_memory,
    "ms": formats.milliseconds,
    "name": name_job,
    "number": formats.number,
    "objection": find_objection,
    "outcome_chip": chip_for_outcome,
    "percent": formats.percent,
    "provenance": name_provenance,
    "range": describe_range,
    "in_paddle": describe_in_paddle,
    "rate": formats.rate,
    "reason_for": find_reason,
    "run_chip": judge_run,
    "scaling": list_scaling,
    "session_chip": chip_for_session,
    "signed_ms": formats.signed_milliseconds,
    "size": formats.size,
    "software": describe_software,
    "spread": spread,
    "stage_place": place_stage,
    "stage_words": STAGES.__getitem__,
    "stalls": describe_stalls,
    "study_name": name_study,
    "study_place": place_study,
    "tail": formats.clean_tail,
    "throttling": describe_throttling,
    "token_chip": judge_token,
    "traffic": describe_traffic,
    "traffic_rate": formats.data_rate,
    "trial_chip": chip_for_trial,
    "value": show_knob,
    "values": say_values,
    "verdict_chip": chip_for_verdict,
}
"""By the name that a template writes behind `|`."""
