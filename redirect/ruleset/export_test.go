package ruleset

// Plain is for tests.
func (l *LiveRule) Plain() bool { return l.plain }

// Full is the rule's text with all of its lists.
func (r Rule) Full(f Family) string { return r.full(f) }
