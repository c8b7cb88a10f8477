"""The sampler of Fleet Advisor as a package of OptunaHub."""

from advisor.search import FleetSampler

__all__ = ["FleetSampler"]
