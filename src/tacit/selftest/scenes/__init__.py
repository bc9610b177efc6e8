"""Which promises does tacit test? A file for each room, with what is seen of the room from outside."""
