"""An executed notebook as one HTML page that is safe to open offline."""
