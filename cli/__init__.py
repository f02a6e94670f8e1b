"""The installed commands: options in, one call to a package below, text or JSON out, an exit code."""
