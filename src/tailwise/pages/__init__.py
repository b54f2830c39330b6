"""Reports of runs, studies and rules as pages: HTML files that open without a network."""
