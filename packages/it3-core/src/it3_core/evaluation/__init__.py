"""Methods × levels × batch sizes × seeds → records."""
