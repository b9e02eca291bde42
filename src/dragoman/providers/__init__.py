"""Who answers: model providers behind one protocol."""
