// Package misspelt finds the known name that somebody meant by an unknown one.
package misspelt

import (
	"slices"
	"strings"
)

// Names are known names.
type Names struct{ names, plain []string }

// Known makes Names.
func Known(names []string) Names {
	n := Names{names, make([]string, len(names))}
	for i, name := range names {
		n.plain[i] = plain(name)
	}
	return n
}

// Meant returns the name that an unknown one is a misspelling of, or "" if it is none, or is known itself. The two differ
// by case, hyphens, underscores and dots only, or by one or two typing errors: a character too many, too few, wrong, or
// swapped with the next. Two errors count from eight characters after the last slash, one from four; of three, two that are swapped.
func (n Names) Meant(name string) string {
	if slices.Contains(n.names, name) {
		return ""
	}
	length := len(name) - strings.Count(name, "-") - strings.Count(name, "_") - strings.Count(name, ".")
	given, best, fewest := "", "", maxErrors+1
	for i, known := range n.names {
		if d := length - len(n.plain[i]); d > maxErrors || -d > maxErrors {
			continue // as nearly all do
		}
		if given == "" {
			given = plain(name)
		}
		if fewest > 1 && swapped(name, known) {
			best, fewest = known, 1
			continue
		}
		for errs := min(fewest-1, allowed(name, known)); errs >= 0 && within(given, n.plain[i], errs); errs-- {
			best, fewest = known, errs
		}
	}
	return best
}

const maxErrors = 2

// swapped reports whether two names differ by two neighbouring letters alone that are swapped. No other error of so short a name tells
// which was meant.
func swapped(a, b string) bool {
	const least = 3
	if a, b = strings.ToLower(a), strings.ToLower(b); len(a) != len(b) || len(a) < least {
		return false
	}
	for i := range len(a) - 1 {
		if a[i] != b[i] {
			return a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
		}
	}
	return false
}

func allowed(a, b string) int {
	switch short := min(len(a)-strings.LastIndexByte(a, '/'), len(b)-strings.LastIndexByte(b, '/')) - 1; {
	case short < 4:
		return 0
	case short < 8:
		return 1
	}
	return maxErrors
}

func plain(s string) string {
	b := make([]byte, 0, len(s))
	for i := range len(s) {
		switch c := s[i]; {
		case c == '-' || c == '_' || c == '.':
		case 'A' <= c && c <= 'Z':
			b = append(b, c+'a'-'A')
		default:
			b = append(b, c)
		}
	}
	return string(b)
}

// within reports whether a becomes b by at most so many typing errors. It takes time in proportion to the shorter text.
func within(a, b string, errs int) bool {
	if len(a)-len(b) > errs || len(b)-len(a) > errs {
		return false
	}
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		a, b = a[1:], b[1:]
	}
	switch {
	case a == "" || b == "":
		return len(a)+len(b) <= errs
	case errs == 0:
		return false
	}
	swapped := len(a) > 1 && len(b) > 1 && a[0] == b[1] && a[1] == b[0]
	return swapped && within(a[2:], b[2:], errs-1) ||
		within(a[1:], b[1:], errs-1) || within(a[1:], b, errs-1) || within(a, b[1:], errs-1)
}
