"""Roads from the air: a recurrent U-Net whose previous mask is the signal of IT³."""
