package ruleset

// Plain is for tests.
func (l *LiveRule) Plain() bool { return l.plain }
