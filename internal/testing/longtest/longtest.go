// Package longtest tells tests how much to try. CI tries each kind once. With the build tag long, which `make test-long`,
// `make e2e-long` and the nightly run set, tests try all of them, more rounds and full crowds.
package longtest

// Of returns what a test tries: the few that stand for all, and with the tag long the rest too.
func Of[T any](few []T, rest ...T) []T {
	if !On {
		return few
	}
	return append(few[:len(few):len(few)], rest...)
}

// Rounds returns how often a test tries, or how many at once.
func Rounds(few, many int) int {
	if On {
		return many
	}
	return few
}
