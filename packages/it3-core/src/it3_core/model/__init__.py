"""What a network with a signal is: adapters, conditioning, norms and the equations."""
