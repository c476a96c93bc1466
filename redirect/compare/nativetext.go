package compare

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// word is a word, a string in quotes, or one of { } ; , and the end of a line, which is ";" too.
type word struct {
	text   string
	line   int
	quoted bool
	mark   bool
}

// text prints the words as nft does, on one line.
func text(words []word) string {
	var b strings.Builder
	for i, w := range words {
		if i > 0 && (!w.mark || w.text != ",") {
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

// lex splits what nft prints. In a string it has no escapes.
func lex(s string) (words []word) {
	line := 1
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\n':
			words = append(words, word{text: ";", line: line, mark: true})
			line++
		case ' ', '\t', '\r':
		case '\\':
			if i+1 < len(s) && s[i+1] == '\n' {
				i, line = i+1, line+1
			}
		case '#':
			for i+1 < len(s) && s[i+1] != '\n' {
				i++
			}
		case '{', '}', ';', ',':
			words = append(words, word{text: string(c), line: line, mark: true})
		case '"':
			n := strings.IndexAny(s[i+1:], "\"\n")
			if n < 0 {
				n = len(s) - i - 1
			}
			words = append(words, word{text: s[i+1 : i+1+n], line: line, quoted: true})
			if i += n; i+1 < len(s) && s[i+1] == '"' {
				i++
			}
		default:
			n := strings.IndexAny(s[i:], " \t\r\n{};,\"")
			if n < 0 {
				n = len(s) - i
			}
			words = append(words, word{text: s[i : i+n], line: line})
			i += n - 1
		}
	}
	return words
}

// nativeParser reads tables with their sets and chains, and leaves rules in words.
type nativeParser struct {
	words  []word
	line   int
	tables []nativeTable
}

func (w word) is(mark string) bool { return w.mark && w.text == mark }

// peek is the next word; at the end it is none.
func (p *nativeParser) peek() word {
	if len(p.words) == 0 {
		return word{line: p.line}
	}
	return p.words[0]
}

func (p *nativeParser) next() word {
	w := p.peek()
	p.line = w.line
	if len(p.words) > 0 {
		p.words = p.words[1:]
	}
	return w
}

// statement returns the words up to the end of the statement or to the block that it opens. The braces of a set are words of it,
// and in a chain there are no others.
func (p *nativeParser) statement(inChain bool) (words []word, opens bool) {
	depth := 0
	for len(p.words) > 0 {
		w := p.peek()
		switch {
		case w.is("{") && depth == 0 && !inChain && len(words) > 0 && blocks[words[0].text] && !words[0].quoted:
			p.next()
			return words, true
		case w.is("{"):
			depth++
		case w.is("}") && depth == 0:
			return words, false
		case w.is("}"):
			depth--
		case w.is(";") && depth > 0:
			p.next()
			continue
		case w.is(";"):
			p.next()
			if len(words) == 0 {
				continue
			}
			return words, false
		}
		words = append(words, p.next())
	}
	return words, false
}

// blocks begin what has statements in braces.
var blocks = map[string]bool{
	"table": true, "chain": true, "set": true, "map": true, "meter": true, "flowtable": true, "counter": true, "quota": true,
	"limit": true, "secmark": true, "synproxy": true, "ct": true,
}

// block calls each with the statements of a block, up to its closing brace.
func (p *nativeParser) block(inChain bool, each func(words []word, opens bool) error) error {
	for {
		words, opens := p.statement(inChain)
		switch {
		case len(words) == 0 && p.peek().is("}"):
			p.next()
			return nil
		case len(words) == 0:
			return fmt.Errorf("a block is not closed")
		}
		if err := each(words, opens); err != nil {
			return err
		}
	}
}

func (p *nativeParser) skip() error {
	return p.block(false, func(_ []word, opens bool) error {
		if opens {
			return p.skip()
		}
		return nil
	})
}

func (p *nativeParser) ruleset() error {
	for {
		words, opens := p.statement(false)
		switch {
		case len(words) == 0 && len(p.words) == 0:
			return nil
		case len(words) != 3 || words[0].text != "table" || !opens:
			return fmt.Errorf("%q is no table", text(words))
		}
		if err := p.table(words[1].text, words[2].text); err != nil {
			return err
		}
	}
}

func (p *nativeParser) table(family, name string) error {
	t := nativeTable{family: family, name: name, sets: map[string][]string{}}
	err := p.block(false, func(words []word, opens bool) error {
		switch {
		case !opens:
			for _, w := range words[1:] {
				t.dormant = t.dormant || words[0].text == "flags" && w.text == "dormant"
			}
			return nil
		case words[0].text == "chain" && len(words) == 2:
			return p.chain(&t, words[1].text)
		case words[0].text == "set" && len(words) == 2:
			return p.set(&t, words[1].text)
		}
		return p.skip() // a rule that uses it is not understood
	})
	p.tables = append(p.tables, t)
	return err
}

// set reads a set. One that rules change is none whose elements are known.
func (p *nativeParser) set(t *nativeTable, name string) error {
	var elements []word
	known := true
	err := p.block(false, func(words []word, opens bool) error {
		switch words[0].text {
		case "elements":
			if len(words) > 3 && words[1].text == "=" {
				elements = words[3 : len(words)-1]
			}
		case "flags":
			for _, w := range words[1:] {
				known = known && (w.text == "interval" || w.text == "constant" || w.is(","))
			}
		case "timeout", "gc-interval":
			known = false
		}
		if opens {
			return p.skip()
		}
		return nil
	})
	if known {
		t.sets[name] = listed(elements)
	}
	return err
}

// listed gives the elements of a list, each as its text.
func listed(words []word) (elements []string) {
	var element []word
	for i, w := range words {
		if !w.is(",") {
			w.quoted = false // an interface's name may be
			element = append(element, w)
		}
		if (w.is(",") || i == len(words)-1) && len(element) > 0 {
			elements, element = append(elements, text(element)), nil
		}
	}
	return elements
}

func (p *nativeParser) chain(t *nativeTable, name string) error {
	c := nativeChain{name: name, policy: "accept"}
	err := p.block(true, func(words []word, _ bool) (err error) {
		switch {
		case words[0].text == "type" && !words[0].quoted:
			err = c.header(words)
		case words[0].text == "policy" && len(words) == 2:
			c.policy = words[1].text
		case words[0].text == "comment" && len(words) == 2:
		default:
			c.rules = append(c.rules, words)
		}
		return err
	})
	t.chains = append(t.chains, c)
	return err
}

// priorities are nft's names of them; "dstnat" and "srcnat" are for tables of the families that are known here.
var priorities = map[string]int{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}

// header reads "type nat hook output priority mangle + 5".
func (c *nativeChain) header(words []word) error {
	for i := 0; i+1 < len(words); i += 2 {
		switch v := words[i+1].text; words[i].text {
		case "type":
			c.typ = v
		case "hook":
			c.hook = v
		case "priority":
			base, named := priorities[v]
			rest := ""
			for _, w := range words[i+1:] {
				rest += w.text
			}
			if named {
				rest = rest[len(v):]
			}
			if rest != "" {
				n, err := strconv.Atoi(rest)
				if err != nil {
					return fmt.Errorf("%q is no priority", rest)
				}
				base += n
			}
			c.priority = base
			return nil
		case "device", "devices": // of a family that is refused
			if at := slices.IndexFunc(words, func(w word) bool { return w.text == "priority" }); at > i {
				i = at - 2
			}
		default:
			return fmt.Errorf("%q is no part of a chain's kind", words[i].text)
		}
	}
	return fmt.Errorf("chain %s has no priority", c.name)
}
