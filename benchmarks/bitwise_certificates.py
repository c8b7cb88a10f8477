"""Is a certificate of equal bits ever false? Random trainings, each certified in a race and then trained to its end.

    python benchmarks/bitwise_certificates.py --seeds 0:100 [--output docs/results/bitwise_certificates.md]

Each seed is a script with settings (`random_scripts.py`); settings of which no certificate is ever given are left out,
and seeds without others or with a script that ends before its last step are passed over. A generator that only the
script knows, from which most of them draw their batches, stays in every third seed: nothing can be certified there.

First a race under the runtime holds two arms' bits against the script's own after 12 steps: the settings, and as
control reductions in 16 bits. Then the script trains alone, 40 steps or fewer, by itself and under each arm's
settings from its start. A certificate is **false** where the printed losses or the digest of all parameters at the
end then differ in one bit. A refusal is **needless** where they do not.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from random_cases import Case, make_case
from random_runs import Runner

from advisor.protocol.knobs.catalogue import CATALOGUE
from tests.distributed.runtime.fake_agent import END, FORGE, launch, race

_STEPS, _CERTIFIED = 400, 12
_ENDS = {"ends_early", "raise_one", "raise_all", "sigterm", "sigterm_caught", "sigint", "exit_code", "join"}
CONTROL = {"fp16_allreduce": "on"}


@dataclass(frozen=True)
class Certified:
    """One arm of one script."""

    seed: int
    is_control: bool
    settings: dict[str, str]
    ranks: int
    steps: int
    """That the certificate holds for; 0 without one."""
    why: str
    """Why there is none; empty where there is one."""
    is_same: bool
    """Whether the whole training printed the same and left the same."""


def list_certifiable(case: Case) -> dict[str, str]:
    """Return the case's settings that a certificate can be asked for."""
    return {
        name: value
        for name, value in case.settings.items()
        if CATALOGUE[name].explain_no_certificate() is None
    }


def read_value(name: str, text: str) -> Any:
    """Return a setting's value in its knob's type."""
    kind = CATALOGUE[name].kind
    return text == "on" if kind is bool else kind(text)


def certify(case: Case, arms: dict[str, dict[str, str]]) -> dict[str, tuple[int, str]]:
    """Race the arms in a long version of the script; arm -> steps of its certificate, and why there is none."""
    script = re.sub(r"(WIDTH, STEPS, COUNT, ACCUMULATE = \d+), \d+", rf"\1, {_STEPS}", case.script)
    overrides: dict[str, dict[str, Any]] = {"base": {}}
    for arm, settings in arms.items():
        overrides[arm] = {name: read_value(name, value) for name, value in settings.items()}
    with tempfile.TemporaryDirectory(prefix="certificate-") as name:
        train = Path(name) / "train.py"
        train.write_text(script)
        order = [race(overrides, bit_check_steps=_CERTIFIED), END]
        session = launch(Path(name), [str(train)], order, ranks=case.ranks)
    told: dict[str, tuple[int, str]] = {}
    for arm in arms:
        try:
            result = session.result(arm)
            told[arm] = (
                result["bit_steps"],
                result["bits_differ"] or _say_idle(result),
            )
        except (AssertionError, KeyError):
            told[arm] = (0, f"no result: {(session.log.strip().splitlines() or ['no log'])[-1]}")
    return told


def _say_idle(result: dict[str, Any]) -> str:
    if result["same_as"]:
        return "The same as the script's own settings."
    return "; ".join({**result["not_consumed"], **result["no_effect"]}.values())


def examine(seed: int, runner: Runner) -> list[Certified]:
    """Certify the arms of a script, then train it with and without their settings; none where it is passed over."""
    case = make_case(seed)
    if seed % 3:
        case.script = case.script.replace(", generator=generator)", ")")
    settings = list_certifiable(case)
    if not settings or _ENDS & set(case.features):
        return []
    arms = {"settings": settings, "control": CONTROL}
    told = certify(case, arms)
    found = []
    for arm, (steps, why) in told.items():
        case.settings = arms[arm]
        outcome = runner.run(seed, case)
        if outcome.under is None or outcome.bare.code or outcome.under.code:
            continue
        is_same = outcome.bare.told == outcome.under.told
        found.append(Certified(seed, arm == "control", arms[arm], case.ranks, steps, why, is_same))
    return found


def summarise(found: list[Certified]) -> str:
    """Return the counts, every false certificate, and the reasons of refusals."""
    lines = []
    for title, is_control in (("settings", False), ("control: 16-bit reduction", True)):
        arms = [one for one in found if one.is_control is is_control]
        granted, refused = [a for a in arms if a.steps], [a for a in arms if not a.steps]
        lines.append(
            f"{title}: {len(arms)} scripts; certified {len(granted)}, false {sum(not a.is_same for a in granted)}; "
            f"refused {len(refused)}, needless {sum(a.is_same for a in refused)}."
        )
        for arm in granted:
            if not arm.is_same:
                lines.append(f"  FALSE: seed {arm.seed}, {arm.ranks} ranks, {arm.settings}")
        reasons = Counter(re.sub(r"\d+", "n", a.why)[:110] for a in refused)
        lines += [f"  refused {count}: {why}" for why, count in reasons.most_common(6)]
    return "\n".join(lines)


def main() -> None:
    """Examine the seeds and print what came out; exit 1 where a certificate is false."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", default="0:100", help="first:end")
    parser.add_argument("--output", type=Path, help="write the command and its output to this page")
    arguments = parser.parse_args()
    first, _, end = arguments.seeds.partition(":")
    runner, found = Runner(), list[Certified]()
    for seed in range(int(first), int(end)):
        found += examine(seed, runner)
        print(seed, *((a.steps, a.is_same, a.why[:60]) for a in found if a.seed == seed), flush=True)
    runner.close()
    FORGE.close()
    told = summarise(found)
    print(told)
    if arguments.output:
        heading = "# Certificates of equal bits"
        arguments.output.write_text(f"{heading}\n\n`python {' '.join(sys.argv)}`\n\n```\n{told}\n```\n")
    sys.exit(1 if any(a.steps and not a.is_same for a in found) else 0)


if __name__ == "__main__":
    main()
