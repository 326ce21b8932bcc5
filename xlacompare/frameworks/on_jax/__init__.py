"""The JAX adapter: models in Flax NNX, optimizers through optax."""
