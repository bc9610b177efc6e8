"""How does a loop that somebody else wrote train privately? Its calls, backward passes and batches are watched."""
