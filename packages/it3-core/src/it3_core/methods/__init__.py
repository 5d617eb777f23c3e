"""Methods that answer a batch at test time: `method(x) → Adaptation`."""
