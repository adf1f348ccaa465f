"""Quality of parallel text: signals of single pairs, duplicates, and the filters of `data.filters`."""
