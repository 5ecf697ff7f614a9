"""Pictures: curves and bars with matplotlib."""
