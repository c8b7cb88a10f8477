"""What is checked on the day a GPU is there: each check starts real ranks on the card and judges what they measured."""
