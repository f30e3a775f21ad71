"""Reports of maintenance and row changes as outcomes: one wording of every fact, for all faces.

``health`` describes a table, ``work`` plans and rewrites, ``files`` vacuums and manifests, ``versions`` restores,
checkpoints and the like, ``rows`` row changes. Pages show only short Markdown in place
(:mod:`~dv_maintenance.service.chart`) and never format numbers. Reasons are therefore short, shares are rounded, and
longer texts have separate entries.
"""
