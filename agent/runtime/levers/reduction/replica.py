"""What the lever of the reducer knows about one DistributedDataParallel model: its own settings, and those in force."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple, Union

from ..buckets.bucket_plan import BucketPlan, observe_plan
from . import reduction_plan
from .low_rank_reduction import LowRankReduction
from .reducer import LiveReducer, has_own_hook
from .reduction_hook import BucketReduction
from .reduction_plan import ReductionPlan

Spare = Tuple[LiveReducer, Union[BucketReduction, LowRankReduction, None]]


class Replica:
    """Made before anything was switched."""

    def __init__(self, ddp: Any) -> None:
        self.baseline = observe_plan(ddp)
        self.plan = self.baseline
        self.reduction = reduction_plan.BASELINE
        self.state: Union[BucketReduction, LowRankReduction, None] = None
        self.has_own_hook = has_own_hook(ddp)
        self.baseline_buckets: List[int] = []
        self.order: List[int] = []
        """Indices of its parameters in the order in which DDP puts them into buckets."""
        self.is_cut_at_buckets = False
        """Whether the script's compiled graph has the baseline's buckets built in."""
        self.is_left_alone = False
        """The script has registered a hook since: its own buckets and reduction stay."""
        self.is_stale = False
        """What is in force has to begin anew even where its plan is asked for again."""
        self.spare: Dict[Tuple[BucketPlan, ReductionPlan], Spare] = {}
        """Reducers of other plans that live beside the one in force."""

    def order_under(self, plan: BucketPlan) -> List[int]:
        """The order under this plan. A search keeps that of definition; the last layers' gradients come first."""
        return self.order if plan.searches_unused == self.baseline.searches_unused else self.order[::-1]
