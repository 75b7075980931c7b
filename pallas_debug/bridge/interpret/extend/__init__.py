"""Extensions of jax's interpreters: references and primitives that they lack."""
