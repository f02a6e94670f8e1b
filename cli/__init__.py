"""The commands: dflash-train, dflash-profile, dflash-tune."""
