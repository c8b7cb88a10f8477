"""Notices of jobs to webhooks: whom they may go to, the outbox, and the courier that posts them."""
