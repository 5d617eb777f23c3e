"""Running a network with other weights than its own, cheaply."""
