"""Claims of the paper and of what is written about it, the verdict rule, and the audit."""
