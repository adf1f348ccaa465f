"""Quality of parallel text: signals of single pairs, duplicates, and the rules of `data.filters`."""
