// Package truncate shortens texts that a pod's author controls. They may have hundreds of kilobytes, and go into errors of
// a CNI plugin, logs, Events and terminals, again at each retry.
//
// [Quote] shortens one value, for an error or a warning. [Error] and [Text] shorten the
// whole where it leaves the program, and keep the names of settings above all.
package truncate

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxQuoted bounds the bytes of a quoted value that are shown. With all of a dialect's 25
// settings wrong, and each value shown twice, that makes 10 KB.
const maxQuoted = 160

// Quote returns s in quotes, as %q does. If that takes more than 160 bytes, it returns
// the beginning, and the length of s:
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

// minLine is the least of a line that is kept; less says nothing.
const minLine = 80

// Text returns s in at most limit bytes, which should be some hundreds. Each line, as [errors.Join] makes of an error,
// keeps its beginning, and short lines all of it. If there are too many, the last line says how many more.
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

// MaxFinding bounds the bytes about one pod: the API server's limit of the note of an event (noteLengthLimit in
// k8s.io/kubernetes/pkg/apis/core/validation/events.go).
const MaxFinding = 1024

// Finding shortens what is said of one pod, in its state, events and logs. A node's agent answers with those of all its pods.
func Finding(s string) string { return Text(s, MaxFinding) }

// List shortens texts to limit bytes in all, by the same rules. It never returns nil.
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

// fairShare is the length to which lines must be cut to fit; shorter ones leave the rest to the others.
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

// head is the beginning of a line, and its length, in at most limit bytes.
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

// Named is an error about a setting, whose name Setting returns, such as
// "annotation traffic.sidecar.istio.io/excludeInboundPorts".
type Named interface {
	error
	Setting() string
}

// Error returns the error's text in at most limit bytes, with the names of all settings that it is about, if they fit.
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
		before = "" // it names the pod, which others can do
	}
	text = Text(fmt.Sprintf("%s%d settings are refused: %s", before, len(names), list(names)), limit)
	first := "; the first: " + full[len(before):]
	if limit-len(text) > 2*minLine {
		text += Text(strings.ReplaceAll(first, "\n", "; "), limit-len(text))
	}
	return text
}

// settings lists the names in an error, without repeats.
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

// list joins names. Neighbours in one annotation share its name: "annotation mesh.io/config.{uid, ports}".
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

// annotation is a name up to the dot that ends an annotation's key, or "". Dots before
// the last '/' belong to the key's domain.
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
