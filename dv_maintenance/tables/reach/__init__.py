"""Which stored files the kept versions of a table reach, and who keeps them: what every vacuum decides by.

``needed`` has the files that something keeps, each with its holder. ``unneeded`` divides the others: those unneeded for
long enough, young, or not the table's. ``retention`` limits what a caller may ask for. A format contributes how its
holders are read, how its files are named, and its own rules; ``tables.vacuum`` removes the files.
"""
