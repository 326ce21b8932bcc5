"""Training steps over several ranks: what a strategy and a communication arm mean, without any framework."""
