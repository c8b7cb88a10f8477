"""Algorithm, protocol and channels of NCCL's collectives, through a tuner plugin of our own."""
