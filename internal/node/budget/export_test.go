package budget

// Len is how many namespaces something is kept of.
func (n *Namespaces) Len() int { return len(n.byName) }
