"""Names, numbers and files as people write them."""
