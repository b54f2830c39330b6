"""`tailwise watch`: a page on runs that are going on. It only ever reads files; the trainer does not know of it."""
