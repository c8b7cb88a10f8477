"""NVIDIA's Xid errors: which of them say that the hardware failed, and what to do then.

From NVIDIA's Xid catalogue (GPU deployment and management documentation). The others come from the application (13,
31, 43, 45, …): the process that caused them ends by itself, and its own failure says more.
"""

_RESET = "Reset the GPU (nvidia-smi --gpu-reset) or restart the node; have it examined when it happens again."
_REPLACE = "Take the node out of use and have the GPU examined."
_HARDWARE = {
    48: ("a memory error that ECC could not correct", _RESET),
    62: ("its internal microcontroller halted", _RESET),
    64: ("a row of its memory could not be remapped", _REPLACE),
    74: ("an NVLink error", "Check the NVLink bridges and switches, and restart the node."),
    79: ("it has fallen off the bus", "Restart the node; check power, cooling and the slot when it happens again."),
    94: ("a memory error that ended the process", _RESET),
    95: ("a memory error that could not be contained", _RESET),
    119: ("its system processor (GSP) does not answer", _RESET),
    120: ("its system processor (GSP) failed", _RESET),
    140: ("an unrecovered memory error", _RESET),
    143: ("it could not be initialised", _RESET),
}  # fmt: skip


def describe_failure(device: int, code: int) -> str:
    """Return what happened to a device and what to do, "" where the hardware is not to blame."""
    if code not in _HARDWARE:
        return ""
    what, remedy = _HARDWARE[code]
    name = f"GPU {device}" if device >= 0 else "A GPU"
    return f"{name} reported Xid {code}: {what}. {remedy}"
