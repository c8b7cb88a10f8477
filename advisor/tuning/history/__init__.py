"""A job's history in the words that decisions need: records, scores, losses and the budget."""
