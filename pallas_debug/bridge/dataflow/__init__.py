"""Two engines that walk jaxprs: forwards with values, and backwards with what is wanted of them."""
