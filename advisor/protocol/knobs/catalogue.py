"""The catalogue's entries: the knobs of PaddlePaddle Fleet's DistributedStrategy and its surroundings.

Defaults and rules of thumb are those of the Fleet documents. `docs/knobs.md` is generated from this file.
"""

from collections.abc import Mapping

from advisor.protocol.knobs.carried import CARRIED
from advisor.protocol.knobs.communication import COMMUNICATION
from advisor.protocol.knobs.compute import COMPUTE
from advisor.protocol.knobs.environment import ENVIRONMENT
from advisor.protocol.knobs.knob import Knob
from advisor.protocol.knobs.loading import LOADING
from advisor.protocol.knobs.sharding import SHARDING
from advisor.protocol.knobs.training import TRAINING

CATALOGUE: Mapping[str, Knob] = {
    knob.name: knob
    for knob in (*COMMUNICATION, *TRAINING, *COMPUTE, *ENVIRONMENT, *LOADING, *SHARDING, *CARRIED)
}
"""Every knob by name."""
