// Package documents takes streams of YAML and JSON apart, and says on which line a field is.
package documents

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// MaxSize bounds a document with its aliases written out, in bytes. etcd refuses objects above 1.5 MiB.
const MaxSize = 8 << 20

// Document is one of a stream.
type Document struct {
	// Line is its first, from 1.
	Line  int
	first int // line with content
	text  []byte
	json  bool
	root  *yamlv3.Node // once a place was asked for; a zero Node if none can be told
}

// Error says what is wrong on a line.
type Error struct {
	Line int
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Err) }

// Unwrap returns what is wrong.
func (e *Error) Unwrap() error { return e.Err }

// Split takes a stream of YAML, or of JSON objects one after another, apart. The documents share its memory.
func Split(text []byte) ([]*Document, error) {
	if bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		return nil, errors.New("it is in UTF-16: save it in UTF-8")
	}
	text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf"))
	if all, ok := splitJSON(text); ok {
		return all, nil
	}
	return splitYAML(text), nil
}

func splitJSON(text []byte) (all []*Document, ok bool) {
	if start := bytes.TrimLeft(text, " \t\r\n"); len(start) == 0 || start[0] != '{' {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(text))
	line, counted := 1, int64(0)
	for d.More() {
		var raw json.RawMessage
		if d.Decode(&raw) != nil {
			return nil, false
		}
		start := d.InputOffset() - int64(len(raw))
		line += bytes.Count(text[counted:start], []byte("\n"))
		counted = start
		all = append(all, &Document{Line: line, first: line, text: raw, json: true})
	}
	return all, len(bytes.TrimSpace(text[d.InputOffset():])) == 0
}

// splitYAML ends a document before a line that starts with "---" and after one that starts with "...". Comments and directives before the
// "---" belong to the document behind it.
func splitYAML(text []byte) (all []*Document) {
	start, from, line, first, content := 0, 1, 1, 0, false
	end := func(at, next int) {
		if content {
			all = append(all, &Document{Line: from, first: max(first, from), text: text[start:at]})
			start, from, first, content = at, next, 0, false
		}
	}
	for at := 0; at < len(text); line++ {
		next := at + lineLength(text[at:])
		this := text[at:next]
		switch {
		case isMarker(this, "---"):
			end(at, line)
			content = true
		case isMarker(this, "..."):
			end(next, line+1)
		case len(bytes.TrimSpace(this)) > 0 && this[0] != '%' && bytes.TrimSpace(this)[0] != '#':
			content = true
			if first == 0 {
				first = line
			}
		}
		at = next
	}
	end(len(text), line)
	return all
}

// lineLength is the number of bytes up to what YAML takes for the end of the first line, and with it.
func lineLength(text []byte) int {
	at := bytes.IndexAny(text, "\n\r\u0085\u2028\u2029")
	switch {
	case at < 0:
		return len(text)
	case bytes.HasPrefix(text[at:], []byte("\r\n")), text[at] == 0xC2:
		return at + 2
	case text[at] == 0xE2:
		return at + 3
	}
	return at + 1
}

func isMarker(line []byte, marker string) bool {
	rest, ok := bytes.CutPrefix(line, []byte(marker))
	return ok && (len(rest) == 0 || bytes.IndexAny(rest, " \t\r\n\u0085\u2028\u2029") == 0)
}

// JSON returns the document as JSON, with aliases written out: null if nothing but comments is in it. Each error is an [Error], such as of
// a key that is there twice.
func (d *Document) JSON() ([]byte, []error) {
	switch {
	case len(d.text) > MaxSize:
		return nil, []error{d.errorf(0, "the document has %d bytes, and %d are the most", len(d.text), MaxSize)}
	case d.json:
		return d.text, nil
	}
	if bytes.ContainsRune(d.text, '&') {
		if err := d.bound(); err != nil {
			return nil, []error{err}
		}
	}
	text, err := yaml.YAMLToJSONStrict(d.text)
	if err == nil {
		return text, nil
	}
	if twice := d.twice(); len(twice) > 0 {
		return nil, twice
	}
	if text, err = yaml.YAMLToJSON(d.text); err == nil { // a key beside one that is merged
		return text, nil
	}
	return nil, []error{d.syntax(err)}
}

// inLine finds the line that the library names.
var inLine = regexp.MustCompile(`^(?:yaml: |error converting YAML to JSON: )*(?:line (\d+): )?`)

// syntax is the library's error with its line.
func (d *Document) syntax(err error) error {
	text, line := err.Error(), 0
	if m := inLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	if bytes.Contains(d.text, []byte("{{")) {
		text += ": it has {{, so it may be a template, which has to be rendered first"
	}
	return d.errorf(line, "%s", text)
}

// errorf makes an error of a line within the document, from 1; 0 is its first.
func (d *Document) errorf(line int, format string, args ...any) error {
	return &Error{d.Line + max(line, 1) - 1, fmt.Errorf(format, args...)}
}

// tree parses the document for its lines.
func (d *Document) tree() *yamlv3.Node {
	if d.root == nil {
		d.root = &yamlv3.Node{}
		var document yamlv3.Node
		if yamlv3.Unmarshal(d.text, &document) == nil && len(document.Content) > 0 {
			d.root = document.Content[0]
		}
	}
	return d.root
}

// bound refuses aliases that make more than [MaxSize] of the document, or name what they are in.
func (d *Document) bound() error {
	sizes := map[*yamlv3.Node]int{}
	const open = -1
	var size func(n *yamlv3.Node) (int, error)
	size = func(n *yamlv3.Node) (int, error) {
		if n.Kind == yamlv3.AliasNode {
			n = n.Alias
		}
		if known, ok := sizes[n]; ok && known == open {
			return 0, d.errorf(n.Line, "the anchor %s is in itself", n.Anchor)
		} else if ok {
			return known, nil
		}
		sizes[n] = open
		all := len(n.Value) + 1
		for _, c := range n.Content {
			one, err := size(c)
			if err != nil {
				return 0, err
			}
			if all += one; all > MaxSize {
				return 0, d.errorf(n.Line, "with its aliases written out the document has more than %d bytes", MaxSize)
			}
		}
		sizes[n] = all
		return all, nil
	}
	_, err := size(d.tree())
	return err
}

// twice names the keys that a mapping has more than once.
func (d *Document) twice() (errs []error) {
	for nodes := []*yamlv3.Node{d.tree()}; len(nodes) > 0; {
		n := nodes[len(nodes)-1]
		nodes = append(nodes[:len(nodes)-1], n.Content...)
		if n.Kind != yamlv3.MappingNode {
			continue
		}
		first := map[string]int{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yamlv3.ScalarNode || key.Value == "<<" {
				continue
			}
			if line, ok := first[key.Value]; ok {
				errs = append(errs, d.errorf(key.Line, "the key %q is there twice: it is on line %d too", key.Value, d.Line+line-1))
			} else {
				first[key.Value] = key.Line
			}
		}
	}
	slices.SortStableFunc(errs, func(a, b error) int { return a.(*Error).Line - b.(*Error).Line })
	return errs
}

// Place returns the line of the field at a path of keys and of indices of lists; of the last part of the path that is there.
func (d *Document) Place(path ...any) int {
	if len(path) == 0 {
		return d.first
	}
	n := d.tree()
	line := n.Line
	for _, step := range path {
		if n.Kind == yamlv3.AliasNode {
			n = n.Alias
		}
		next, at := child(n, step)
		if next == nil {
			break
		}
		n, line = next, at
	}
	return d.Line + max(line, 1) - 1
}

// child returns the value of a key or an index, and the line where it begins.
func child(n *yamlv3.Node, step any) (value *yamlv3.Node, line int) {
	switch step := step.(type) {
	case int:
		if n.Kind == yamlv3.SequenceNode && step < len(n.Content) {
			return n.Content[step], n.Content[step].Line
		}
	case string:
		if n.Kind != yamlv3.MappingNode {
			return nil, 0
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == step {
				return n.Content[i+1], n.Content[i].Line
			}
		}
		for i := 0; i+1 < len(n.Content); i += 2 { // of a mapping that is merged, the use says more than the anchor
			if n.Content[i].Value == "<<" {
				if merged, _ := child(merge(n.Content[i+1]), step); merged != nil {
					return merged, n.Content[i].Line
				}
			}
		}
	}
	return nil, 0
}

func merge(n *yamlv3.Node) *yamlv3.Node {
	if n.Kind == yamlv3.AliasNode {
		return n.Alias
	}
	return n
}

// Path reads the path of a field, such as spec.containers[0].image.
func Path(field string) (path []any) {
	for part := range strings.SplitSeq(field, ".") {
		name, indices, _ := strings.Cut(part, "[")
		path = append(path, name)
		for index := range strings.SplitSeq(indices, "[") {
			if i, err := strconv.Atoi(strings.TrimSuffix(index, "]")); err == nil {
				path = append(path, i)
			}
		}
	}
	return path
}
