"""One job: its verdict, advice, story, exports and forecasts, and the form that makes one."""
