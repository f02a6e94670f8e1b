"""The DFlash trainer: a frozen target feeds a block-diffusion drafter through threads in one process."""
