"""The advisor's search, to import: a sampler for studies of Optuna that knows the settings of distributed training."""

from advisor.tuning.search.sampler import FleetSampler

__all__ = ["FleetSampler"]
