"""Sources: each turns something an operator names into ``OpDefinition``s."""
