"""The paper's claims (Sections 5 and 6) as small experiments: one module a claim."""
