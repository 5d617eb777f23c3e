"""Files that are never half written and never somebody else's. Imports nothing."""
