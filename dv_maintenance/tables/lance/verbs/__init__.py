"""Operations that only some formats offer: new names for manifests."""
