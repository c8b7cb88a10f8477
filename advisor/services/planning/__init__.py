"""What comes next for a job: asked of the planner outside every transaction, and kept until it is needed."""
