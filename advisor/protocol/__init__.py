"""What server and agents say to each other: pydantic, re2 and the standard library only."""
