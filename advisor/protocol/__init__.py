"""What server and agents say to each other: pydantic and the standard library only."""
