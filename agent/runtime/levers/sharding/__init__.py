"""How a model sharded by fully_shard gathers its parameters and scatters its gradients."""
