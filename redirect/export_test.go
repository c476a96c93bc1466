package redirect

// Count is how many rules the Redirect would make, by the count that the bound goes by.
func (r Redirect) Count() int {
	total, _, _ := r.count()
	return total
}

var (
	ParsePrefixes   = parsePrefixes
	ParseInterfaces = parseInterfaces
)

// HasLoopback is for tests.
func (s PrefixSet) HasLoopback() bool { return s.hasLoopback() }
