package ruleset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/redirect/internal/chains"
)

// maxUnsafe bounds how many chains with such names are looked for in a text.
const maxUnsafe = 256

// maskNames masks the names of chains that hold what separates words, so that each line of the text
// is one chain or one rule. A masked name is unsafe too. A name may look like a part of another
// rule: a caller that has to be sure compares the number of rules in each chain with the kernel's.
func maskNames(text string, names []string) (string, error) {
	names = append(slices.Clone(names), declaredNames(text)...)
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.ContainsAny(n, " \t\n\v\f\r\"\\") })
	if len(names) == 0 {
		return text, nil
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(len(b)-len(a), strings.Compare(a, b)) })
	if names = slices.Compact(names); len(names) > maxUnsafe {
		return "", fmt.Errorf("%d chains have names that no program of iptables makes, more than %d", len(names), maxUnsafe)
	}
	text = "\n" + text
	for _, name := range names {
		mask := strings.Map(func(c rune) rune {
			if chains.UnsafeRune(c) {
				return '?'
			}
			return c
		}, name)
		for _, around := range [][2]string{{"\n:", " "}, {"\n-A ", " "}, {"\n-A ", "\n"}, {"] -A ", " "}, {"] -A ", "\n"}, {" -j ", "\n"}, {" -g ", "\n"}} {
			old, masked := around[0]+name+around[1], around[0]+mask+around[1]
			for strings.Contains(text, old) { // more than once: two may share a line feed
				text = strings.ReplaceAll(text, old, masked)
			}
		}
	}
	return text[1:], nil
}

// declaredNames returns the names in the chain lines of a text.
func declaredNames(text string) (names []string) {
	for line := range strings.Lines(text) {
		if line[0] == ':' {
			if name, _, err := parseChainLine(strings.TrimRight(line, "\r\n")); err == nil && !chains.Safe(name) {
				names = append(names, name)
			}
		}
	}
	return names
}

// parseChainLine reads ":NAME POLICY [PACKETS:BYTES]" from its end, since a name may have spaces.
func parseChainLine(line string) (name, policy string, err error) {
	rest := line[1:]
	if at := strings.LastIndex(rest, " ["); at > 0 {
		rest = rest[:at]
	}
	at := strings.LastIndexByte(rest, ' ')
	if at <= 0 || at == len(rest)-1 {
		return "", "", fmt.Errorf("chain %q has no policy", line)
	}
	return rest[:at], rest[at+1:], nil
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

// wordsText joins the words of a known rule. Only a log prefix needs quotes.
func wordsText(words []string) string {
	var b []byte
	for i, w := range words {
		if i > 0 {
			b = append(b, ' ')
		}
		if strings.ContainsFunc(w, func(c rune) bool { return chains.UnsafeRune(c) && !strings.ContainsRune("/,:!+", c) }) || w == "" {
			b = appendWord(b, w)
		} else {
			b = append(b, w...)
		}
	}
	return string(b)
}
