"""Operations that only some formats offer: restore, convert, downgrade, symlink manifests, the engine's own SQL."""
