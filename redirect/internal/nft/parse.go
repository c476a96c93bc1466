package nft

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/redirect/ruleset"
)

// Word is a word, a string in quotes, or one of { } ; , and the end of a line, which is ";" too.
type Word struct {
	text   string
	line   int
	quoted bool
	mark   bool
}

// Name is the word that is a name, whatever characters it has.
func Name(s string) Word { return Word{text: s} }

// Quoted is a string in quotes, whatever characters it has.
func Quoted(s string) Word { return Word{text: s, quoted: true} }

// Join prints the words as nft does, on one line.
func Join(words []Word) string {
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

// split splits what nft prints. In a string it has no escapes.
func split(s string) (words []Word) {
	line := 1
	for i := 0; i < len(s); i++ {
		switch c := s[i]; c {
		case '\n':
			words = append(words, Word{text: ";", line: line, mark: true})
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
			words = append(words, Word{text: string(c), line: line, mark: true})
		case '"':
			n := strings.IndexAny(s[i+1:], "\"\n")
			if n < 0 {
				n = len(s) - i - 1
			}
			words = append(words, Word{text: s[i+1 : i+1+n], line: line, quoted: true})
			if i += n; i+1 < len(s) && s[i+1] == '"' {
				i++
			}
		default:
			n := strings.IndexAny(s[i:], " \t\r\n{};,\"")
			if n < 0 {
				n = len(s) - i
			}
			words = append(words, Word{text: s[i : i+n], line: line})
			i += n - 1
		}
	}
	return words
}

// ParseTables parses the output of nft list ruleset, but for tables that are dormant, and returns its chains. The error names the line.
func ParseTables(text string) (ruleset.LiveChains, error) {
	p := tableParser{words: split(text)}
	if err := p.ruleset(); err != nil {
		return nil, fmt.Errorf("rules of nftables, line %d: %w", p.line, err)
	}
	return p.chains, nil
}

// tableParser reads tables with their sets and chains. The rules of a table are read at its end, when its sets are known.
type tableParser struct {
	words  []Word
	line   int
	reader Reader
	chains ruleset.LiveChains
	// sets and rules are of the table under way: the elements of each set that rules do not change, and each chain's rules.
	sets  map[string][]string
	rules [][][]Word
}

func (w Word) is(mark string) bool { return w.mark && w.text == mark }

// peek is the next word; at the end it is none.
func (p *tableParser) peek() Word {
	if len(p.words) == 0 {
		return Word{line: p.line}
	}
	return p.words[0]
}

func (p *tableParser) next() Word {
	w := p.peek()
	p.line = w.line
	if len(p.words) > 0 {
		p.words = p.words[1:]
	}
	return w
}

// statement returns the words up to the end of the statement or to the block that it opens. The braces of a set are words of it,
// and in a chain there are no others.
func (p *tableParser) statement(inChain bool) (words []Word, opens bool) {
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
func (p *tableParser) block(inChain bool, each func(words []Word, opens bool) error) error {
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

func (p *tableParser) skip() error {
	return p.block(false, func(_ []Word, opens bool) error {
		if opens {
			return p.skip()
		}
		return nil
	})
}

func (p *tableParser) ruleset() error {
	for {
		words, opens := p.statement(false)
		switch {
		case len(words) == 0 && len(p.words) == 0:
			return nil
		case len(words) != 3 || words[0].text != "table" || !opens:
			return fmt.Errorf("%q is no table", Join(words))
		}
		if err := p.table(words[1].text, words[2].text); err != nil {
			return err
		}
	}
}

func (p *tableParser) table(family, name string) error {
	p.sets, p.rules = map[string][]string{}, nil
	dormant, first := false, len(p.chains)
	err := p.block(false, func(words []Word, opens bool) error {
		switch {
		case !opens:
			for _, w := range words[1:] {
				dormant = dormant || words[0].text == "flags" && w.text == "dormant"
			}
			return nil
		case words[0].text == "chain" && len(words) == 2:
			return p.chain(family+" "+name, words[1].text)
		case words[0].text == "set" && len(words) == 2:
			return p.set(words[1].text)
		}
		return p.skip() // a rule that uses it is not understood
	})
	if dormant {
		p.chains = p.chains[:first]
		return err
	}
	for i, rules := range p.rules {
		c := &p.chains[first+i]
		for at, words := range rules {
			r := p.reader.Read(family, words, p.sets)
			r.Table, r.Chain, r.Position = c.Table, c.Name, at+1
			c.Rules = append(c.Rules, r)
		}
	}
	return err
}

// set reads a set. One that rules change is none whose elements are known.
func (p *tableParser) set(name string) error {
	var elements []Word
	known := true
	err := p.block(false, func(words []Word, opens bool) error {
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
		p.sets[name] = listed(elements)
	}
	return err
}

// listed gives the elements of a list, each as its text.
func listed(words []Word) (elements []string) {
	var element []Word
	for i, w := range words {
		if !w.is(",") {
			w.quoted = false // an interface's name may be
			element = append(element, w)
		}
		if (w.is(",") || i == len(words)-1) && len(element) > 0 {
			elements, element = append(elements, Join(element)), nil
		}
	}
	return elements
}

func (p *tableParser) chain(table, name string) error {
	c := ruleset.LiveChain{Table: table, Name: name}
	policy := ruleset.ActionAccept.String()
	var rules [][]Word
	err := p.block(true, func(words []Word, _ bool) (err error) {
		switch {
		case words[0].text == "type" && !words[0].quoted:
			c.Hook, err = parseHook(words)
		case words[0].text == "policy" && len(words) == 2:
			policy = words[1].text
		case words[0].text == "comment" && len(words) == 2:
		default:
			rules = append(rules, words)
		}
		return err
	})
	if c.Hook != nil {
		c.Hook.Policy, c.Policy = policy, policy
	}
	p.chains, p.rules = append(p.chains, c), append(p.rules, rules)
	return err
}

// priorityNames are nft's names of priorities; "dstnat" and "srcnat" are for tables of the families that are known here.
var priorityNames = map[string]int{"raw": -300, "mangle": -150, "dstnat": -100, "filter": 0, "security": 50, "srcnat": 100}

// parseHook reads "type nat hook output priority mangle + 5".
func parseHook(words []Word) (*ruleset.Hook, error) {
	h := &ruleset.Hook{}
	for i := 0; i+1 < len(words); i += 2 {
		switch v := words[i+1].text; words[i].text {
		case "type":
			h.Type = v
		case "hook":
			h.Point = v
		case "priority":
			base, named := priorityNames[v]
			rest := ""
			for _, w := range words[i+1:] {
				rest += w.text
			}
			if named {
				rest = rest[len(v):]
			}
			if rest != "" {
				n, err := strconv.ParseInt(rest, 10, 32)
				if err != nil {
					return nil, fmt.Errorf("%q is no priority", rest)
				}
				base += int(n)
			}
			h.Priority = int32(base) //nolint:gosec // beyond 32 bits nft has none
			return h, nil
		case "device", "devices": // of a family that is refused
			if at := slices.IndexFunc(words, func(w Word) bool { return w.text == "priority" }); at > i {
				i = at - 2
			}
		default:
			return nil, fmt.Errorf("%q is no part of a chain's kind", words[i].text)
		}
	}
	return nil, fmt.Errorf("a base chain has no priority")
}
