"""How stages run their models and bring results home: eager, compiled or from CUDA graphs; copies to the host."""
