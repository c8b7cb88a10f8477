"""What a step does beside its passes: whatever tensors a script computes with, and nothing of what passes by."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from agent.runtime.races.beside import BesideCount  # noqa: E402
from agent.runtime.races.likeness import count_repeated, measure_variety, sketch  # noqa: E402


class Told(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self, beside: BesideCount) -> None:
        super().__init__()
        self.beside = beside

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # Past the guard, which would let an error pass by.
        BesideCount.note.__wrapped__(self.beside, str(func.overloadpacket), args, kwargs or {}, result)
        return result


@pytest.mark.filterwarnings("ignore")
def test_every_kind_of_tensor_is_passed_on_or_looked_at() -> None:
    beside = BesideCount([torch.nn.Parameter(torch.randn(3))], [])
    beside.begin()
    with Told(beside):
        torch.func.vmap(torch.func.grad(lambda x: (x**2).sum()))(torch.randn(4, 3))
        torch.func.jvp(torch.sin, (torch.randn(3),), (torch.randn(3),))
        torch.randn(3, device="meta") * 2
        torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (3,)).to_dense()
        torch.nested.nested_tensor([torch.randn(2), torch.randn(3)]) + 1
        torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(3, 3)], layout=torch.jagged) * 2
        torch.complex(torch.randn(3), torch.randn(3)).conj() * 2
        torch.empty(2).set_(torch.randn(3).untyped_storage())
        torch._foreach_mul([torch.randn(3), torch.randn(0)], 2.0)
    # All of them are gone again.
    assert beside.find_kept([]) == [False]
    with Told(beside):
        kept = torch.randn(3) * 2
    assert beside.find_kept([]) == [True]
    del kept


def batches(count: int, noise: float, of: int) -> list[str]:
    """`count` batches, made of the first `of` ones with so much noise."""
    dice = torch.Generator().manual_seed(1)
    first = [torch.randn(8, 16, generator=dice) for _ in range(of)]
    return [sketch([first[k % of] + noise * torch.randn(8, 16, generator=dice), {}]) for k in range(count)]


@pytest.mark.parametrize(
    ("count", "noise", "of", "repeated"),
    [(10, 0.0, 10, 0), (10, 0.0, 5, 5), (10, 0.1, 5, 5), (10, 1.0, 5, 0), (3, 0.1, 1, 0), (0, 0.0, 1, 0)],
)
def test_batches_that_come_again_are_counted(count: int, noise: float, of: int, repeated: int) -> None:
    assert count_repeated(batches(count, noise, of)) == repeated


def test_batches_of_tokens_are_alike_where_few_were_drawn_anew() -> None:
    dice = torch.Generator().manual_seed(2)
    tokens = [torch.randint(50_000, (4, 64), generator=dice) for _ in range(6)]
    again = [torch.where(torch.rand(4, 64, generator=dice) < 0.03, 7, one) for one in tokens]
    assert count_repeated([sketch(one) for one in [*tokens, *again]]) == 6
    sparse = [torch.zeros(4, 200).index_fill(1, torch.tensor(k), 1.0) for k in range(6)]
    assert count_repeated([sketch(one) for one in [*sparse, sparse[0]]]) == 1
    # Whatever was given that holds no numbers.
    assert count_repeated([sketch("a"), sketch("b"), sketch([torch.tensor(float("nan"))])]) == 1
    assert measure_variety([sketch(one) for one in tokens]) == pytest.approx(1.0, abs=0.2)
    assert measure_variety(batches(10, 0.05, 1)) < 0.1
