"""Where a rank stands, from what its interpreter wrote: a wait, or an import that is still under way."""

import pytest

from agent.guard.stacks import RankStack

LIB = "/venv/lib/python3.11/site-packages"
MACHINERY = [
    '  File "<frozen importlib._bootstrap>", line 241 in _call_with_frames_removed',
    '  File "<frozen importlib._bootstrap>", line 1176 in _find_and_load',
]
SCRIPT = ['  File "/home/me/train.py", line 8 in <module>']
TORCH = [f'  File "{LIB}/torch/__init__.py", line 2190 in <module>', *MACHINERY]


@pytest.mark.parametrize(
    ("inner", "told"),
    [
        (TORCH, "still importing torch."),
        ([*MACHINERY, *TORCH], "still importing torch."),
        (
            ['  File "/usr/lib/python3.11/inspect.py", line 1798 in _shadowed_dict', *TORCH],
            "still importing torch.",
        ),
        (
            [f'  File "{LIB}/torch/distributed/fsdp/api.py", line 3 in <module>', *MACHINERY],
            "still importing torch.distributed.fsdp.api.",
        ),
        (
            [*MACHINERY, f'  File "{LIB}/torch/optim/adam.py", line 3 in step'],
            "still importing.",
        ),
        ([f'  File "{LIB}/torch/x.py", line 3 in wait'], "which waits in torch/x.py:3 (wait)."),
    ],
)
def test_a_rank_that_imports_is_told_so_with_the_module(inner: list[str], told: str) -> None:
    text = "\n".join(["Current thread 0x00007f0000000000 (most recent call first):", *inner, *SCRIPT])
    assert RankStack(1, text).sentence() == f"Rank 1 is in train.py:8 (<module>), {told}"
