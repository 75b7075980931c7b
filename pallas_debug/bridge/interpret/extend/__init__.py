"""Extensions of jax's interpreters: what they lack, and one compilation for all threads."""
