"""How the runtime gets into an unchanged script: the patches, the joining of ranks, and their whole life."""
