"""What people and programs get of a job: pages of what was measured, advice, forecasts, exports, reported trainings."""
