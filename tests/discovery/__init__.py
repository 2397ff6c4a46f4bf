"""Discovery: topology files and what is made of them."""
