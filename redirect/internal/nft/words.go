package nft

import "strings"

// Word is a word of a rule, or a string in quotes.
type Word struct {
	text   string
	quoted bool
}

// Name is the word that is a name, whatever characters it has.
func Name(s string) Word { return Word{text: s} }

// Quoted is a string in quotes, whatever characters it has.
func Quoted(s string) Word { return Word{text: s, quoted: true} }

// Join prints the words as nft does, on one line.
func Join(words []Word) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 {
			b.WriteByte(' ')
		}
		if w.quoted {
			b.WriteString(`"` + w.text + `"`)
		} else {
			b.WriteString(w.text)
		}
	}
	return b.String()
}
