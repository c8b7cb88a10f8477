"""A kind of random training script whose parameters end as a ledger: how much each gradient of each rank counted.

Every micro-batch of every rank has an entry of its own in every parameter, whose gradient is one: after plain SGD an
entry holds what was applied of it. So what a setting promises can be held against what it did, also where losses say
nothing: merging by k lets each gradient count 1/k, everything else counts as it does in the bare script.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
from random_sketch import Sketch, draw_options

if TYPE_CHECKING:
    from random_cases import Case
    from random_verdicts import Trained

_LEDGERS, _LENGTH = 5, 20000
"""Parameters, and numbers in each: more than the smallest bucket holds."""
_STEPS = 30
_CLOSE = 1e-2
"""16 bits hold a whole number of a few entries to more than that."""


def draw_ledger(draw: random.Random) -> Sketch:
    """Accumulation and freezing by any schedule, over parameters of one size."""
    parts = draw.choice((1, 1, 2))
    held = draw.choice(("part + 1 < PARTS", "False"))
    frozen = draw.choice(("False", "False", "i == 1 and step % 7 < 3", "i == step % 5", "i and step < 12"))
    search = ", find_unused_parameters=True" if frozen != "False" else ""
    body = f"""WIDTH, STEPS, PARTS = 16, {_STEPS}, {parts}

class Ledgers(nn.Module):
    def __init__(self):
        super().__init__()
        self.ledgers = nn.ParameterList(torch.zeros({_LENGTH}) for _ in range({_LEDGERS}))

    def forward(self, place):
        return sum(ledger[place].sum() for ledger in self.ledgers)

net = Ledgers()
model = DDP(net{search}{draw_options(draw)})
optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
for step in range(STEPS):
    for i, ledger in enumerate(net.ledgers):
        ledger.requires_grad_(not ({frozen}))
    for part in range(PARTS):
        with model.no_sync() if {held} else contextlib.nullcontext():
            loss = model(torch.tensor([(step * PARTS + part) * world + rank]))
            loss.backward()
    mark(step, loss, net.parameters())
    optimizer.step()
    optimizer.zero_grad()
finish(net.parameters())
"""
    return Sketch(body, [f"parts{parts}", "held" if held != "False" else "reduced", frozen.replace(" ", "")])


def find_broken_promise(case: Case, bare: Trained, under: Trained) -> str:
    """What gradients count under the settings, where it is not what they promise; "" where it is."""
    was, now = _read(bare, case), _read(under, case)
    if was.shape != now.shape:
        return "another number of entries"
    share = 1.0
    if "gradient_merge" in case.settings and case.settings.get("gradient_merge_avg") != "off":
        share = 1.0 / int(case.settings["gradient_merge_k_steps"])
    right = np.isclose(now, was, atol=_CLOSE) | np.isclose(now, was * share, atol=_CLOSE)
    if "gradient_merge" in case.settings:
        pending = int(case.settings["gradient_merge_k_steps"]) - 1
        right[:, _STEPS - pending :] |= now[:, _STEPS - pending :] == 0.0
    if right.all():
        return ""
    ledger, step, entry = (int(place[0]) for place in np.nonzero(~right))
    count, before = now[ledger, step, entry], was[ledger, step, entry]
    found = f"{count:.3g}, not {before:.3g}, of parameter {ledger} in step {step}"
    return f"{(~right).sum()} gradients count otherwise, the first {found}"


def _read(trained: Trained, case: Case) -> np.ndarray:
    """What each gradient counted, by parameter, step and micro-batch of a rank: the mean of all ranks' parameters."""
    mean = sum(trained.parameters.values()) / case.ranks
    counted = -np.asarray(mean).reshape(_LEDGERS, _LENGTH) * case.ranks
    parts = int(case.features[0].removeprefix("parts"))
    return counted[:, : _STEPS * parts * case.ranks].reshape(_LEDGERS, _STEPS, parts * case.ranks)
