"""The lever of micro_batches: a model's forward in parts of the batch."""
