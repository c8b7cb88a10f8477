"""How ranks talk: to each other, to their agent, and to who watches them."""
