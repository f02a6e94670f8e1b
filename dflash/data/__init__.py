"""From conversations on disk to documents: token ids with loss masks, and the books of what was refused."""
