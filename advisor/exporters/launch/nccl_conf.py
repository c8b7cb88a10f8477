"""`nccl.conf`: the changed NCCL variables, as the library itself reads them."""

from advisor.exporters.comments import comment, head_lines
from advisor.exporters.exported import Exported
from advisor.exporters.launch.environment import choose_variables
from advisor.protocol.answers.advice import Advice, Provenance
from advisor.protocol.asked.jobs import Job
from advisor.protocol.kinds import Place
from advisor.protocol.knobs.catalogue import CATALOGUE

NCCL_KNOBS = tuple(
    name for name, knob in CATALOGUE.items() if knob.place is Place.ENVIRONMENT and name.startswith("NCCL_")
)


def export_nccl_conf(advice: Advice, job: Job) -> Exported:
    """Return the file, for `NCCL_CONF_FILE` (NCCL 2.23 and later) or as `~/.nccl.conf`."""
    variables = {name: text for name, text in choose_variables(advice).items() if name in NCCL_KNOBS}
    provenance = {name: advice.provenance.get(name, Provenance.CARRIED) for name in variables}
    unmapped = {knob: "It is no setting of NCCL's." for knob in advice.changes if knob not in provenance}
    warnings = []
    if variables:
        warnings.append(
            "A variable that is exported already beats this file; so does NCCL_CONF_FILE beat ~/.nccl.conf."
        )
    if ours := sorted(variables.keys() & job.spec.workload.environment.keys()):
        warnings.append(f"The job itself sets {', '.join(ours)}: take them out there.")
    title = "Strategy for NCCL: export NCCL_CONF_FILE=<this file> on every node, or save it as ~/.nccl.conf."
    head = head_lines(advice, job, title, provenance, warnings, unmapped)
    if not variables:
        head.append("The strategy sets nothing of NCCL's.")
    return Exported(
        format="nccl",
        filename="nccl.conf",
        media_type="text/plain; charset=utf-8",
        content=comment(head) + "".join(f"{name}={text}\n" for name, text in variables.items()),
        provenance=provenance,
        unmapped=unmapped,
        warnings=tuple(warnings),
    )
