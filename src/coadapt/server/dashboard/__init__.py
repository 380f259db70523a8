"""Pages for people: written here, kept fresh by one small script."""
