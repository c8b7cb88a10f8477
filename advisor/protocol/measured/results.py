"""What agents and ranks tell each other of a race, as the runtime declares it: pydantic validates it as it is."""

from agent.runtime.link.measured import NOTICEABLE_S as NOTICEABLE_S
from agent.runtime.link.measured import PHASE_NAMES as PHASE_NAMES
from agent.runtime.link.measured import BlockResult as BlockResult
from agent.runtime.link.measured import Calibration as Calibration
from agent.runtime.link.measured import Ceiling as Ceiling
from agent.runtime.link.measured import CollectiveCall as CollectiveCall
from agent.runtime.link.measured import GradientNoise as GradientNoise
from agent.runtime.link.measured import GradientTiming as GradientTiming
from agent.runtime.link.measured import LateRank as LateRank
from agent.runtime.link.measured import LinkLevel as LinkLevel
from agent.runtime.link.measured import LinkTiming as LinkTiming
from agent.runtime.link.measured import Phases as Phases
from agent.runtime.link.measured import Place as Place
from agent.runtime.link.measured import RankTimeline as RankTimeline
from agent.runtime.link.measured import Span as Span
from agent.runtime.link.measured import StepWork as StepWork
from agent.runtime.races.order import RaceRules as RaceRules
