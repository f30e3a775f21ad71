"""File formats that tables and engine share. These modules import no table format and no engine."""
