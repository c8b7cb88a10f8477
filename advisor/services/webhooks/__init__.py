"""Notices of jobs to webhooks: whom they may go to, what they say, and how they are posted."""
