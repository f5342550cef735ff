"""Differentiation: from an ``OpDefinition`` to the traced functions of an ``Op``; the only user of GradientTape."""
