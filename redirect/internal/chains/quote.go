package chains

import "strings"

// QuoteOpen reports whether a string that iptables-save has quoted goes on after a line: it may hold line feeds. The argument
// says so of the line's beginning.
func QuoteOpen(line string, open bool) bool {
	for i := 0; i < len(line); i++ {
		switch line[i] {
		case '\\':
			if open {
				i++
			}
		case '"':
			open = !open
		}
	}
	return open
}

// IsRule reports whether a line of iptables-save, with counters or without, begins a rule.
func IsRule(line string) bool { return strings.HasPrefix(line, "-A ") || strings.HasPrefix(line, "[") }
