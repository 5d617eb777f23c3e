"""Which method, or none, and how far to believe an answer."""
