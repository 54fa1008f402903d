"""The core written anew, beside the old one until it takes over: nothing of it is exported yet."""
