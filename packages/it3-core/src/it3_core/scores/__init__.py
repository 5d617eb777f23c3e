"""How unusual an input is: one number a row."""
