"""Operations that only some formats offer: Paimon's own procedures."""
