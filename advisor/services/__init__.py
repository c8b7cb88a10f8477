"""What users and agents can ask for: one public function for each.

A function that takes a `work` runs inside its caller's transaction: one request is one transaction. A function
that takes a `database` thinks between two transactions (the planner computes while no transaction is open) and
applies what it decided only if the job is still the one it looked at.
"""
