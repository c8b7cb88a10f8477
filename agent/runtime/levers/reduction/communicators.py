"""The process groups that carry gradients: made once, on every rank in one order, kept while an arm needs them.

They stand beside a group of the script's, and serve all models that reduce over that one: what the script's group would
have carried in one order, its companions carry in the same order, each in one lane. Each of NCCL's takes device memory,
half a gigabyte and more: see `Communicators.prepare` and `keep_only`.
"""

from __future__ import annotations

import atexit
import contextlib
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from ...backends import find_backend, find_timeout
from ...guard import guarded
from ...private_torch import ABORT_GROUP
from .lanes import let_threads_rest, open_lane
from .nccl_options import Configuration, build_options, explain_no_options, read_fields
from .reduction_plan import ReductionPlan


@dataclass(frozen=True)
class Levels:
    """One rank's part in a two-level allreduce."""

    inner: Any
    """Group of the consecutive ranks that reduce among themselves first."""
    inner_size: int
    leader: int
    """Global rank that stands for the inner group."""
    outer: Any
    """Group of the ranks with the same place in their inner groups."""


ORDERED_FROM = (2, 26)
"""NCCL's first release that can keep the launch order of several communicators the same on every rank."""
ORDER = "NCCL_LAUNCH_ORDER_IMPLICIT"


def explain_no_order(backend: str) -> Optional[str]:
    """Why collectives of several communicators side by side could wait for each other for ever, or None."""
    if backend != "nccl":
        return None
    version = torch.cuda.nccl.version()
    if version[:2] < ORDERED_FROM:
        found = ".".join(str(number) for number in version)
        return (
            f"NCCL {found} keeps no order among several communicators, so that ranks may wait for each other for ever: "
            "use a torch with NCCL 2.26 or later."
        )
    if os.environ.get(ORDER) != "1":
        return f"The job sets {ORDER}={os.environ.get(ORDER, '')}: several communicators would have no common order."
    return None


KEPT_FREE = 0.02
"""Share of a card's memory that stays free beside what a new communicator may take."""
USUAL_BYTES = 1600 * 2**20
"""What one communicator was seen to take at most, where none like it was made yet."""
OPENING = (1, 2**21)
"""Numbers in the first sums of a new communicator: NCCL opens the connections for short and for long messages with
the first of each."""
_Kind = Tuple[Any, Configuration]
"""The script's group that it stands beside, and what it is made with."""
_Key = Tuple[int, int, Optional[str], _Kind]


class NoRoom(RuntimeError):
    """Some rank's card has no room for the communicators asked for; raised on every rank alike."""


def claim_room(count: int, device: torch.device, bytes_each: int = USUAL_BYTES) -> int:
    """Collective. Bytes free on this rank's card; raises NoRoom where one has too few for `count` communicators."""
    free, total = torch.cuda.mem_get_info(device)
    # The allocator's own reserve is not counted as free: the next steps want it again.
    needed = count * bytes_each + int(KEPT_FREE * total)
    [lacking] = agree_on_most([needed - free], device)
    if lacking > 0:
        raise NoRoom(
            f"{count} more communicator(s) may take {needed / 2**30:.2g} GiB of the card, and the fullest one has "
            f"{(needed - lacking) / 2**30:.2g} GiB free beside what the training uses."
        )
    return int(free)


def agree_on_most(own: List[int], device: torch.device) -> List[int]:
    """Collective. The largest of all ranks' numbers, place by place."""
    numbers = torch.tensor(own, dtype=torch.int64, device=device)
    dist.all_reduce(numbers, op=dist.ReduceOp.MAX)
    return [int(number) for number in numbers.tolist()]


class Communicators:
    """Creating a group is collective: every rank asks for the same ones at the same step boundary."""

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self._rank = rank
        self._world_size = world_size
        self._device = device
        self._world: Any = None
        """The job's own group that all of these were made beside."""
        self._flat: Dict[_Kind, List[Any]] = {}
        self._levels: Dict[_Key, Levels] = {}
        self._lanes: Dict[Tuple[Any, bool], List[Any]] = {}
        self._rests_at_exit = False
        self._taken: Dict[Configuration, int] = {}
        """Device memory that one communicator of each kind took, where it was looked at."""

    def prepare(self, plan: ReductionPlan, beside: Any = None) -> None:
        """Collective. On NCCL: makes what the plan lacks, where every card has room for it, and opens its connections.

        Else the first backward pass would, between timed steps and perhaps without memory. Raises NoRoom.
        """
        self._forget_earlier_world()
        kind = self._name_kind(plan.configuration, beside)
        there = len(self._flat.get(kind, ()))
        keys = self._list_keys(plan, beside)
        flat, levels = max(0, plan.own_groups - there), [key for key in keys if key not in self._levels]
        if not (flat or levels) or self._find_backend(kind[0]) != "nccl":
            return
        count = flat + len(levels) * (1 if plan.gloo_between else 2)
        free = claim_room(count, self._device, self._taken.get(plan.configuration, USUAL_BYTES))
        failure = ""
        try:
            self._open(self._list_groups(plan, beside))
        except RuntimeError as error:
            failure = str(error).splitlines()[0]
        [has_failed] = agree_on_most([int(bool(failure))], self._device)
        if has_failed:
            self._destroy_flat(kind, there)
            self._destroy_levels(levels)
            raise NoRoom(
                f"NCCL could not make {count} more communicator(s): {failure or 'another rank says why'}."
            )
        taken = max(0, free - torch.cuda.mem_get_info(self._device)[0])
        self._taken[kind[1]] = max(self._taken.get(kind[1], 0), -(-taken // count))

    def keep_only(self, plans: Sequence[ReductionPlan]) -> None:
        """Collective. On NCCL: destroys the communicators that none of the plans needs, which gives their memory back.

        No reducer may be left that uses one of them.
        """
        self._forget_earlier_world()
        for kind in [kind for kind in self._flat if self._find_backend(kind[0]) == "nccl"]:
            needed = max((plan.own_groups for plan in plans if plan.configuration == kind[1]), default=0)
            self._destroy_flat(kind, needed)
        owners = {kind[0] for _, _, _, kind in self._levels}
        needed_keys = {key for plan in plans for owner in owners for key in self._list_keys(plan, owner)}
        idle = [key for key in self._levels if key not in needed_keys]
        self._destroy_levels([key for key in idle if self._find_backend(key[3][0]) == "nccl"])

    def provide_flat(self, count: int, configuration: Configuration = (), beside: Any = None) -> List[Any]:
        """`count` groups of all ranks beside the script's `beside` (None: the job's own), none of them the script's:
        a lane may use them undisturbed."""
        self._forget_earlier_world()
        if not count:
            return []  # the model's own group may be gone, as that of one which the script wrapped anew
        kind = self._name_kind(configuration, beside)
        groups, ranks = self._flat.setdefault(kind, []), list(range(self._world_size))
        while len(groups) < count:
            groups.append(dist.new_group(ranks, **self._list_how(kind)))
        return groups[:count]

    def provide_levels(
        self,
        count: int,
        inner_size: int,
        between: Optional[str] = None,
        configuration: Configuration = (),
        beside: Any = None,
    ) -> List[Levels]:
        """`count` sets of two-level groups with `inner_size` consecutive ranks inside.

        `between` is the backend of the outer groups; None is the job's own.
        """
        self._forget_earlier_world()
        kind = self._name_kind(configuration, beside)
        keys = [(index, inner_size, between, kind) for index in range(count)]
        for key in keys:
            if key not in self._levels:
                self._levels[key] = self._make_levels(inner_size, between, kind)
        return [self._levels[key] for key in keys]

    def provide_lanes(self, count: int, beside: Any, blocks: bool = False) -> List[Any]:
        """`count` lanes beside that group, the n-th for its n-th companions: the same for every model.

        `blocks` says that a stage makes its caller wait for the network, also on CUDA.
        """
        self._forget_earlier_world()
        lanes = self._lanes.setdefault((beside, blocks), [])
        while len(lanes) < count:
            lanes.append(open_lane(self._device, blocks))
        return lanes[:count]

    def read_made(self, plans: Sequence[Tuple[ReductionPlan, Any]]) -> List[Dict[str, int]]:
        """What each of NCCL's communicators of these plans, each beside a group, was made with."""
        groups = {id(group): group for plan, beside in plans for group in self._list_groups(plan, beside)}
        is_nccl = self._find_backend(dist.group.WORLD) == "nccl"
        return read_fields(list(groups.values()), self._device) if is_nccl else []

    def leave_group(self) -> None:
        """The script destroys its process group, and these with it: a reference would keep its sockets open, to which
        the ranks' next group may then connect."""
        self._world = None
        self._flat.clear()
        self._levels.clear()
        self._close_lanes()

    def _forget_earlier_world(self) -> None:
        """A script that destroyed its process group and made another one has destroyed these with it."""
        if self._world is not dist.group.WORLD:
            self.leave_group()
            self._world = dist.group.WORLD

    def note_hook(self) -> None:
        """A hook is about to run Python on other threads: when the process ends, none may be left inside one."""
        if not self._rests_at_exit:
            self._rests_at_exit = True
            atexit.register(guarded(self._rest))

    def _rest(self) -> None:
        with contextlib.suppress(RuntimeError):  # of a device that failed
            self._close_lanes()
        let_threads_rest()

    def _close_lanes(self) -> None:
        for lane in [lane for lanes in self._lanes.values() for lane in lanes]:
            lane.close()
        self._lanes.clear()

    def _name_kind(self, configuration: Configuration, beside: Any) -> _Kind:
        return (dist.group.WORLD if beside is None else beside), configuration

    def _list_keys(self, plan: ReductionPlan, beside: Any) -> List[_Key]:
        if not plan.inner_size:
            return []
        between = "gloo" if plan.gloo_between else None
        kind = self._name_kind(plan.configuration, beside)
        return [(index, plan.inner_size, between, kind) for index in range(plan.communicators)]

    def _list_groups(self, plan: ReductionPlan, beside: Any) -> List[Any]:
        """Those of the job's own backend; makes what is missing."""
        groups = self.provide_flat(plan.own_groups, plan.configuration, beside)
        if plan.inner_size:
            between, kind = "gloo" if plan.gloo_between else None, plan.configuration
            found = self.provide_levels(plan.communicators, plan.inner_size, between, kind, beside)
            groups += [levels.inner for levels in found]
            groups += [] if plan.gloo_between else [levels.outer for levels in found]
        return groups

    def _open(self, groups: List[Any]) -> None:
        for group in groups:
            for length in OPENING:
                dist.all_reduce(torch.zeros(length, device=self._device), group=group)
        torch.cuda.synchronize(self._device)

    def _destroy_flat(self, kind: _Kind, kept: int) -> None:
        groups = self._flat.get(kind, [])
        while len(groups) > kept:
            _destroy(groups.pop())

    def _destroy_levels(self, keys: List[_Key]) -> None:
        for levels in [self._levels.pop(key) for key in keys if key in self._levels]:
            _destroy(levels.inner)
            _destroy(levels.outer)

    def _make_levels(self, inner_size: int, between: Optional[str], kind: _Kind) -> Levels:
        starts = range(0, self._world_size, inner_size)
        inner = self._split([list(range(start, start + inner_size)) for start in starts], None, kind)
        apart = [[start + place for start in starts] for place in range(inner_size)]
        outer = self._split(apart, between, (kind[0], ()) if between else kind)
        return Levels(inner, inner_size, self._rank // inner_size * inner_size, outer)

    def _split(self, parts: List[List[int]], backend: Optional[str], kind: _Kind) -> Any:
        """This rank's group of a partition of all ranks: one call, whatever their number."""
        mine = next(part for part in parts if self._rank in part)
        how = self._list_how(kind, backend)
        if how["backend"] != "nccl" or getattr(dist.group.WORLD, "bound_device_id", None) is None:
            return dist.new_group(mine, use_local_synchronization=True, **how)
        # The job bound a device to its process group: then NCCL splits communicators, which takes every rank. Without
        # options, torch 2.6 to 2.9 would make the job's own those of its part, and change them.
        if hasattr(dist, "split_group") and dist.get_backend() == how["backend"] and "pg_options" in how:
            del how["backend"]
            return dist.split_group(split_ranks=parts, **how)
        groups = [dist.new_group(part, **how) for part in parts]
        return groups[parts.index(mine)]

    def _list_how(self, kind: _Kind, backend: Optional[str] = None) -> Dict[str, Any]:
        """What makes a new group like that beside it: its timeout, and its options but for the configuration."""
        beside, configuration = kind
        how: Dict[str, Any] = {"backend": backend or self._find_backend(beside)}
        timeout = find_timeout(beside, self._device)
        if timeout is not None:
            how["timeout"] = timeout
        if how["backend"] == "nccl" and explain_no_options(beside, self._device) is None:
            how["pg_options"] = build_options(configuration, self._device)
        return how

    def _find_backend(self, group: Any) -> str:
        return find_backend(group, self._device)


def _destroy(group: Any) -> None:
    try:
        dist.destroy_process_group(group)
    except RuntimeError:
        # From torch 2.6 on that waits for what is under way, and NCCL refuses to where the communicator has failed.
        ABORT_GROUP.load()(group)
