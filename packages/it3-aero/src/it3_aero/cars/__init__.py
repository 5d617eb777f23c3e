"""Cars: from any triangulated body to a drag coefficient, and a network that knows its limits."""
