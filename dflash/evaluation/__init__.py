"""How well a drafter drafts: acceptance lengths of finished texts, and the command that measures them."""
