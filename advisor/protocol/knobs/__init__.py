"""The knobs: what each one is, where it acts, when it can matter; one entry for each in the catalogue."""
