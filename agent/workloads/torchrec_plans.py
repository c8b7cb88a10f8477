"""Sharding plans of a TorchRec model as files: written as candidates for a race, and read by the script that trains.

`python -m agent.workloads.torchrec_plans train.py:build_model --ranks 2` writes them with the planner's estimates. The
file needs torch and torchrec only, so that it can be copied beside a script.
"""

from __future__ import annotations

import argparse
import json
import logging
import runpy
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    from torch import distributed as dist
    from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
    from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
    from torchrec.distributed.planner.enumerators import EmbeddingEnumerator
    from torchrec.distributed.planner.perf_models import NoopPerfModel
    from torchrec.distributed.planner.planners import to_sharding_plan
    from torchrec.distributed.planner.types import PlannerError, ShardingOption
    from torchrec.distributed.sharding_plan import get_default_sharders
    from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan
except (ImportError, OSError) as error:
    raise SystemExit(
        f"TorchRec cannot be imported here ({error}). With torch 2.13 on CPUs this pair works: pip install --no-deps "
        "fbgemm-gpu-cpu==1.8.0 torchrec==1.8.0; pip install pyre-extensions tensordict torchmetrics==1.0.3 tqdm"
    ) from None

LARGE = 0.1
"""Share of all tables' numbers from which a table is one of the large ones."""
TYPES = ("table_wise", "row_wise", "column_wise", "data_parallel")
BETWEEN_NODES = ("table_row_wise", "grid_shard")
"""What differs from the others on several nodes only."""
FIELDS = ("sharding_type", "compute_kernel", "ranks")


def read_plan(path: str) -> ShardingPlan:
    """The plan in a file that was written here, for DistributedModelParallel(…, plan=…)."""
    told = json.loads(Path(path).read_text())
    if dist.is_initialized() and told["ranks"] != dist.get_world_size():
        raise ValueError(f"{path} is a plan for {told['ranks']} ranks, and {dist.get_world_size()} train")
    return ShardingPlan({name: _read_module(tables) for name, tables in told["plan"].items()})


def _read_module(tables: Mapping[str, Any]) -> EmbeddingModuleShardingPlan:
    plan = EmbeddingModuleShardingPlan()
    for name, table in tables.items():
        shards = [ShardMetadata(**shard) for shard in table["shards"]]
        spec = EnumerableShardingSpec(shards) if shards else None
        plan[name] = ParameterSharding(**{field: table[field] for field in FIELDS}, sharding_spec=spec)
    return plan


def describe_plan(plan: ShardingPlan) -> dict[str, Any]:
    """It as plain JSON."""
    return {
        module: {name: _describe_table(table) for name, table in tables.items()}
        for module, tables in plan.plan.items()
    }


def _describe_table(table: ParameterSharding) -> dict[str, Any]:
    shards = [
        {
            "shard_offsets": list(shard.shard_offsets),
            "shard_sizes": list(shard.shard_sizes),
            "placement": str(shard.placement),
        }
        for shard in (table.sharding_spec.shards if table.sharding_spec else ())
    ]
    return {**{field: getattr(table, field) for field in FIELDS}, "shards": shards}


class Candidates:
    """Plans of a model, each of them once. TorchRec's planner places the tables, under constraints."""

    def __init__(self, model: Any, topology: Topology, batch: int, lookups: Mapping[str, float]) -> None:
        self._model, self._topology, self._batch, self._lookups = model, topology, batch, lookups
        self.files: dict[str, dict[str, Any]] = {}
        """By name, what the file of each holds: first the planner's choice where it is told nothing."""
        self.refused: dict[str, str] = {}

    def collect(self) -> None:
        """The planner's choice; then all tables, and each group of tables alone, sharded in every other way."""
        default = self._plan({})
        self._add("default", default)
        kinds = {option.name: option.sharding_type for option in default}
        sizes = {option.name: option.tensor.numel() for option in default}
        columns = {option.name: option.tensor.shape[1] // self._topology.world_size for option in default}
        large = {name for name, size in sizes.items() if size >= LARGE * sum(sizes.values())}
        if self._lookups:
            self._try("told-lookups", {name: self._constrain(name) for name in kinds})
        several = self._topology.local_world_size < self._topology.world_size
        for kind in TYPES + BETWEEN_NODES * several:
            for group, names in (("all", set(kinds)), ("large", large), ("small", set(kinds) - large)):
                wanted = {name: kind if name in names else kinds[name] for name in kinds}
                self._try(
                    f"{group}-{kind.replace('_', '-')}",
                    {name: self._constrain(name, wanted[name], columns[name]) for name in kinds},
                )

    def _constrain(self, table: str, kind: str | None = None, columns: int = 0) -> ParameterConstraints:
        return ParameterConstraints(
            sharding_types=[kind] if kind else None,
            min_partition=columns if columns and columns % 4 == 0 else None,
            pooling_factors=[self._lookups.get(table, 1.0)],
        )

    def _try(self, name: str, constraints: Mapping[str, ParameterConstraints]) -> None:
        try:
            self._add(name, self._plan(constraints))
        except (PlannerError, RuntimeError, ValueError) as error:
            self.refused[name] = next(iter(str(error).strip().splitlines()), type(error).__name__)

    def _plan(self, constraints: Mapping[str, ParameterConstraints]) -> list[ShardingOption]:
        kept: list[ShardingOption] = []
        EmbeddingShardingPlanner(
            topology=self._topology, batch_size=self._batch, constraints=dict(constraints), debug=False,
            callbacks=[lambda options: kept.extend(options) or options],
        ).plan(self._model, list_sharders(is_default=not constraints))  # fmt: skip
        return kept

    def _add(self, name: str, options: list[ShardingOption]) -> None:
        plan = describe_plan(to_sharding_plan(options, self._topology))
        if any(plan == known["plan"] for known in self.files.values()):
            return
        total, tables = self._estimate(options)
        told = {"ranks": self._topology.world_size, "batch": self._batch, "estimated_ms": total}
        self.files[name] = {**told, "estimated_ms_by_table": tables, "plan": plan}

    def _estimate(self, options: list[ShardingOption]) -> tuple[float, dict[str, float]]:
        """What the planner says of these placements once it is told how many rows a sample looks up."""
        constraints = {
            option.name: self._constrain(option.name, option.sharding_type, option.shards[0].size[1])
            for option in options
        }
        enumerator = EmbeddingEnumerator(self._topology, self._batch, constraints=constraints)
        placed = {(option.name, option.compute_kernel): option for option in options}
        found = [
            option
            for option in enumerator.enumerate(self._model, list_sharders())
            if (option.name, option.compute_kernel) in placed
        ]
        for option in found:
            for shard, own in zip(
                option.shards, placed[option.name, option.compute_kernel].shards, strict=True
            ):
                shard.rank = own.rank
        by_table = {option.name: round(option.total_perf, 4) for option in found}
        return round(NoopPerfModel(self._topology).rate(found), 4), by_table


def list_sharders(is_default: bool = False) -> list[Any]:
    """TorchRec's own; on CPUs its planner leaves out tables split by rows, which its kernels there train, too."""
    sharders = get_default_sharders()
    for sharder in () if is_default else sharders:
        known = sharder.sharding_types
        sharder.sharding_types = lambda device, known=known: list(dict.fromkeys([*known(device), "row_wise"]))
    return sharders


def compare(advice: Path) -> list[str]:
    """The planner's estimates beside the steps that `advisor advice JOB --json` tells of, fastest first."""
    told, lines = json.loads(advice.read_text()), []
    for point in told["pareto"]:
        values = {**told["baseline"], **point["changes"]}.values()
        path = next((value for value in values if str(value).endswith(".json")), None)
        if path is None:
            raise SystemExit(f"{advice} is of a job that raced no plans: no value in it is a file NAME.json")
        file = json.loads(Path(path).read_text())
        samples_per_s = told["baseline_samples_per_s"] * point["throughput_ratio"]
        measured_ms = file["ranks"] * file["batch"] / samples_per_s * 1e3
        estimated_ms = file["estimated_ms"]
        lines.append(f"{estimated_ms:9.3f} {measured_ms:9.1f} {measured_ms / estimated_ms:8.0f}  {path}")
    return ["estimated  measured   factor  plan (ms a step)", *lines]


def main() -> None:
    """Write the candidates' files, and say how to race them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", help="FILE:FUNCTION that returns the model before it is sharded.")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, help="All of them, where it is not said.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--batch", type=int, default=512, help="Samples of a rank and step.")
    parser.add_argument(
        "--lookups", default="", help="Rows that a sample looks up, by table: item=20,tag=10."
    )
    parser.add_argument("--most", type=int, default=8, help="Candidates beside the default, by estimate.")
    parser.add_argument("--into", type=Path, default=Path("plans"), help="Folder of the files.")
    parser.add_argument(
        "--measured", type=Path, help="What `advisor advice JOB --json` wrote: compare, and end."
    )
    asked = parser.parse_args()
    if asked.measured:
        print("\n".join(compare(asked.measured)))
        return
    if not asked.model:
        parser.error("name the model: FILE:FUNCTION")
    warnings.filterwarnings("ignore")  # What TorchRec says of itself, whatever one does.
    logging.disable(logging.WARNING)

    file, _, function = asked.model.partition(":")
    sys.path[:0] = [str(Path(file).resolve().parent)]
    model = runpy.run_path(file)[function or "build_model"]()
    lookups = {
        name: float(count) for name, _, count in (w.partition("=") for w in asked.lookups.split(",") if w)
    }
    topology = Topology(
        world_size=asked.ranks,
        local_world_size=asked.ranks_per_node or asked.ranks,
        compute_device=asked.device,
    )
    candidates = Candidates(model, topology, asked.batch, lookups)
    candidates.collect()

    default, *others = candidates.files
    ranked = sorted(others, key=lambda name: candidates.files[name]["estimated_ms"])
    asked.into.mkdir(parents=True, exist_ok=True)
    for name in (chosen := [default, *ranked[: asked.most]]):
        file = asked.into / f"{name}.json"
        file.write_text(json.dumps(candidates.files[name], indent=1) + "\n")
        print(f"{candidates.files[name]['estimated_ms']:9.3f} ms estimated  {file}")
    for name in ranked[asked.most :]:
        print(
            f"{candidates.files[name]['estimated_ms']:9.3f} ms estimated  {name}: left out (--most {asked.most})"
        )
    for name, why in candidates.refused.items():
        print(f"              refused  {name}: {why}")
    print("\nRace them, the first one being today's:\n")
    values = ",".join(str(asked.into / f"{name}.json") for name in chosen)
    print(f"advisor tune --allow numeric --knob plan --try 'plan={values}:numeric' \\")
    print(f"    -- torchrun … --plan {values.split(',')[0]}")


if __name__ == "__main__":
    main()
