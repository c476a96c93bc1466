// Package brief keeps texts short that a pod's author has a say in. What it is
// given may be some hundred kilobytes long, and goes into the error of a CNI
// plugin, a runtime's log, an Event or a terminal, again at each retry.
//
// [Quote] is for one value, where it is put into an error or a warning. [Error]
// and [Text] are for the whole, where it leaves the program: there the names of
// settings are worth more than what is wrong with them.
package brief

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxQuoted is how many bytes of a value are shown, as quoted. A dialect has
// some 25 settings: all of them wrong, each value shown twice, is some 10 KB.
const maxQuoted = 160

// Quote returns s in quotes, as %q does. Of what takes more than 160 bytes so
// it returns the beginning, and how long all of it is:
//
//	"80,81,8…" (240000 bytes)
func Quote(s string) string {
	if len(s) <= maxQuoted {
		if q := strconv.Quote(s); len(q) <= maxQuoted+2 {
			return q
		}
	}
	b := []byte{'"'}
	for rest := s; rest != ""; {
		_, n := utf8.DecodeRuneInString(rest)
		q := strconv.Quote(rest[:n])
		if q = q[1 : len(q)-1]; len(b)+len(q) > maxQuoted+1 {
			break
		}
		b, rest = append(b, q...), rest[n:]
	}
	return fmt.Sprintf(`%s…" (%d bytes)`, b, len(s))
}

// minLine is how much is left of a line at least: a part of it that says less
// is not worth its place.
const minLine = 80

// Text returns s in at most limit bytes, of which there should be some hundred.
// Each of its lines, which is what [errors.Join] makes of an error, keeps its
// beginning, and the short ones all of it; where there are too many lines the
// last says how many more there are.
func Text(s string, limit int) string {
	if len(s) <= limit {
		return s
	}
	lines := strings.Split(s, "\n")
	more := ""
	if most := max(1, limit/minLine); len(lines) > most {
		more = fmt.Sprintf("\n… and %d more", len(lines)-most)
		lines = lines[:most]
	}
	share := fairShare(lines, limit-len(more)-len(lines))
	for i, line := range lines {
		lines[i] = head(line, share)
	}
	return strings.Join(lines, "\n") + more
}

// List returns texts of at most limit bytes in all, by the same rules; never nil.
func List(texts []string, limit int) []string {
	out, n := append([]string{}, texts...), 0
	for i, s := range out {
		out[i] = strings.ReplaceAll(s, "\n", " ")
		n += len(s) + 1
	}
	if n <= limit {
		return append([]string{}, texts...)
	}
	return strings.Split(Text(strings.Join(out, "\n"), limit), "\n")
}

// fairShare is the length to which lines must be cut to fit: those that are
// shorter leave their rest to the others.
func fairShare(lines []string, limit int) int {
	sizes := make([]int, len(lines))
	for i, line := range lines {
		sizes[i] = len(line)
	}
	slices.Sort(sizes)
	for i, size := range sizes {
		share := limit / (len(sizes) - i)
		if size > share {
			return share
		}
		limit -= size
	}
	return limit
}

// head is the beginning of a line, with how long all of it is; at most limit bytes.
func head(line string, limit int) string {
	if len(line) <= limit {
		return line
	}
	end := fmt.Sprintf("… (%d bytes)", len(line))
	n := max(0, limit-len(end))
	for n > 0 && !utf8.RuneStart(line[n]) {
		n--
	}
	return line[:n] + end
}

// Named is an error about one setting: Setting is what it is called, such as
// "annotation traffic.sidecar.istio.io/excludeInboundPorts".
type Named interface {
	error
	Setting() string
}

// Error returns the error's text in at most limit bytes, with the name of each
// setting that it is about, if names alone can fit.
func Error(err error, limit int) string {
	full := err.Error()
	if len(full) <= limit {
		return full
	}
	names := settings(err)
	text := Text(full, limit)
	if !slices.ContainsFunc(names, func(name string) bool { return !strings.Contains(text, name) }) {
		return text
	}
	before := full[:max(0, strings.Index(full, names[0]))]
	if len(before) > limit/4 {
		before = "" // which pod it is can be told elsewhere
	}
	text = Text(fmt.Sprintf("%s%d settings are refused: %s", before, len(names), list(names)), limit)
	if first := "; the first: " + full[len(before):]; limit-len(text) > 2*minLine {
		text += Text(strings.ReplaceAll(first, "\n", "; "), limit-len(text))
	}
	return text
}

// settings lists what an error is about, without repeats.
func settings(err error) []string {
	var names []string
	seen := map[string]bool{}
	var walk func(error)
	walk = func(err error) {
		if n, ok := err.(Named); ok { //nolint:errorlint // the tree is walked here
			if name := n.Setting(); !seen[name] {
				seen[name] = true
				names = append(names, name)
			}
			return
		}
		switch e := err.(type) { //nolint:errorlint // as above
		case interface{ Unwrap() []error }:
			for _, part := range e.Unwrap() {
				walk(part)
			}
		case interface{ Unwrap() error }:
			if inner := e.Unwrap(); inner != nil {
				walk(inner)
			}
		}
	}
	walk(err)
	return names
}

// list joins names. Neighbours that are parts of one annotation share its name:
// "annotation mesh.io/config.{uid, ports}".
func list(names []string) string {
	var out []string
	for i := 0; i < len(names); {
		whole := annotation(names[i])
		end := i + 1
		for whole != "" && end < len(names) && annotation(names[end]) == whole {
			end++
		}
		if end-i > 1 {
			parts := make([]string, 0, end-i)
			for _, name := range names[i:end] {
				parts = append(parts, name[len(whole):])
			}
			out = append(out, whole+"{"+strings.Join(parts, ", ")+"}")
		} else {
			out = append(out, names[i])
		}
		i = end
	}
	return strings.Join(out, ", ")
}

// annotation is the part of a name up to the dot that ends an annotation's key,
// or "". Before the last '/' of a key stands a domain, whose dots are none.
func annotation(name string) string {
	slash := strings.LastIndexByte(name, '/')
	if slash < 0 {
		return ""
	}
	if dot := strings.IndexByte(name[slash:], '.'); dot >= 0 {
		return name[:slash+dot+1]
	}
	return ""
}
