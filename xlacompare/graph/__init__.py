"""Programs: what a front end emitted and what the compiler made of it, read by XLA's own parsers in a child process."""
