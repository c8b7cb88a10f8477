"""The catalogue's entries: the knobs of PaddlePaddle Fleet's DistributedStrategy and its surroundings.

Defaults and rules of thumb are those of the Fleet documents. `docs/knobs.md` is generated from this file.
"""

from collections.abc import Mapping

from advisor.protocol.carried_knobs import CARRIED
from advisor.protocol.communication_knobs import COMMUNICATION
from advisor.protocol.compute_knobs import COMPUTE
from advisor.protocol.environment_knobs import ENVIRONMENT
from advisor.protocol.knobs import Knob
from advisor.protocol.loading_knobs import LOADING
from advisor.protocol.sharding_knobs import SHARDING
from advisor.protocol.training_knobs import TRAINING

CATALOGUE: Mapping[str, Knob] = {
    knob.name: knob
    for knob in (*COMMUNICATION, *TRAINING, *COMPUTE, *ENVIRONMENT, *LOADING, *SHARDING, *CARRIED)
}
"""Every knob by name."""
