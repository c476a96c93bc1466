package ruleset

import (
	"fmt"
	"strings"
)

// quoteOpen reports whether a quote is open at the end of a line, if one was or was
// not at its beginning.
func quoteOpen(line string, open bool) bool {
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

// splitWords splits at spaces, taking iptables-save's double quotes off.
func splitWords(s string) ([]string, error) {
	var words []string
	var w strings.Builder
	inWord, quoted := false, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && quoted && i+1 < len(s):
			i++
			w.WriteByte(s[i])
		case c == '"':
			quoted, inWord = !quoted, true
		case c == ' ' && !quoted:
			if inWord {
				words = append(words, w.String())
			}
			w.Reset()
			inWord = false
		default:
			w.WriteByte(c)
			inWord = true
		}
	}
	if quoted {
		return nil, fmt.Errorf("quote is not closed")
	}
	if inWord {
		words = append(words, w.String())
	}
	return words, nil
}

// wordsText puts a known rule's words together again. None has anything to quote
// but the prefix of a log line.
func wordsText(words []string) string {
	var b []byte
	for i, w := range words {
		if i > 0 {
			b = append(b, ' ')
		}
		if strings.ContainsFunc(w, func(c rune) bool { return unsafeRune(c) && !strings.ContainsRune("/,:!+", c) }) || w == "" {
			b = appendWord(b, w)
		} else {
			b = append(b, w...)
		}
	}
	return string(b)
}
