"""Pairs of our work and a peer's: ``cases`` says what, ``pairs`` measures in turns, ``page`` shows the results."""
