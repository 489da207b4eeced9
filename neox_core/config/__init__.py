"""Config files to a `Config`, and what is known of every key."""
