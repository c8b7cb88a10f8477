"""The levers: each realises some knobs in a live process, undoes them exactly, and proves that they were consumed."""
