"""The runs that the playground's page plays: surfaces, optimizers, and the file that they are recorded in."""
