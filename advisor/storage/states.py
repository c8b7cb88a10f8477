"""The states in which jobs and sessions are live or final, as statements ask for them."""

from advisor.protocol.asked.jobs import JobState
from advisor.protocol.measured.trials import SessionState

FINAL_JOBS = [state for state in JobState if state.is_final]
LIVE_SESSIONS = [state for state in SessionState if not state.is_final]
FINAL_SESSIONS = [state for state in SessionState if state.is_final]
