"""From what was proved to the sentence: the advice, its reasons, the diagnosis and the what-ifs."""
