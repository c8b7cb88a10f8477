"""Built-in example trainings: ordinary scripts that do not know the advisor exists."""
