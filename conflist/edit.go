package conflist

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
)

// Insert adds entry, a plugin's JSON object with a "type", behind the last plugin of the list in data. It keeps all other
// bytes, and returns a new slice.
//
// If the list already has a plugin of the entry's type, Insert leaves it in place: unchanged if it is the same JSON value,
// otherwise replaced by entry. Insert removes further plugins of the type. A second Insert changes nothing.
//
// Errors: [ErrInvalid] for data or entry, [ErrSingle], [ErrNoInlinePlugins].
func Insert(data, entry []byte) ([]byte, error) {
	doc, err := object(entry)
	if err != nil {
		return nil, fmt.Errorf("read entry: %w", err)
	}
	own, err := parseListed(doc)
	if err != nil {
		return nil, fmt.Errorf("read entry: %w: %w", ErrInvalid, err)
	}
	f, err := parseForEdit(data)
	if err != nil {
		return nil, err
	}
	at := f.indexes(own.Type)
	if len(at) == 0 {
		return f.append(entry), nil
	}
	for len(at) > 1 { // from the back, so that the first keeps its place
		if f, err = parseForEdit(f.cut(at[len(at)-1])); err != nil {
			return nil, err
		}
		at = at[:len(at)-1]
	}
	there := f.spans[at[0]]
	if sameJSON(there.of(f.data), entry) {
		return bytes.Clone(f.data), nil
	}
	st := styleOf(f.data, there)
	return splice(f.data, there, st.render(nil, entry, top(entry), 0)), nil
}

// Remove removes every plugin of the type from the list in data. It undoes Insert byte for byte. Without such a plugin the
// result equals data.
//
// Errors: [ErrInvalid], [ErrLastPlugin].
func Remove(data []byte, pluginType string) ([]byte, error) {
	f, err := Parse(data)
	if err != nil {
		return nil, err
	}
	for {
		at := f.indexes(pluginType)
		if len(at) == 0 {
			return bytes.Clone(f.data), nil
		}
		if len(f.plugins) == 1 {
			return nil, fmt.Errorf("remove %q from network %q: %w", pluginType, f.name, ErrLastPlugin)
		}
		if f, err = Parse(f.cut(at[len(at)-1])); err != nil {
			return nil, err
		}
	}
}

// ToList converts a single plugin's configuration to a list with the same network name, the same cniVersion and the
// plugin's object verbatim. If cniVersion is absent, the list has 0.3.1, the first version with chained plugins. A list is
// returned unchanged. Store the result under the file's [ListName].
//
// Errors: [ErrInvalid], also if the configuration has no network name.
func ToList(data []byte) ([]byte, error) {
	f, err := Parse(data)
	if err != nil {
		return nil, err
	}
	if !f.single {
		return bytes.Clone(data), nil
	}
	if f.name == "" {
		return nil, errNameless
	}
	version := f.version
	if version == "" {
		version = "0.3.1"
	}
	// The braces stand at the object's own column, so that neither it nor a later neighbour needs indenting.
	nl, sp := "\n", " "
	switch obj := f.plugins[0].Raw; {
	case bytes.Contains(obj, []byte("\r\n")):
		nl = "\r\n"
	case !bytes.Contains(obj, []byte("\n")):
		nl, sp = "", ""
	}
	var out bytes.Buffer
	fmt.Fprintf(&out, `{%s"cniVersion":%s%s,%s"name":%s%s,%s"plugins":%s[%s`,
		nl, sp, quote(version), nl, sp, quote(f.name), nl, sp, nl)
	out.Write(f.plugins[0].Raw)
	fmt.Fprintf(&out, "%s]%s}", nl, nl)
	if bytes.HasSuffix(data, []byte("\n")) {
		out.WriteString(nl)
		if nl == "" {
			out.WriteByte('\n')
		}
	}
	return out.Bytes(), nil
}

var errNameless = fmt.Errorf(`%w: the network has no "name"`, ErrInvalid)

func parseForEdit(data []byte) (*File, error) {
	f, err := Parse(data)
	switch {
	case err != nil:
		return nil, err
	case f.single:
		return nil, fmt.Errorf("network %q: %w", f.name, ErrSingle)
	case !f.inline:
		return nil, fmt.Errorf("network %q: %w", f.name, ErrNoInlinePlugins)
	}
	return f, nil
}

func (f *File) indexes(pluginType string) []int {
	var out []int
	for i, p := range f.plugins {
		if p.Type == pluginType {
			out = append(out, i)
		}
	}
	return out
}

// append puts entry behind the last plugin, separated as its neighbours are.
func (f *File) append(entry []byte) []byte {
	n := len(f.spans)
	neighbour := f.spans[n-1]
	from := f.array.start + 1
	if n > 1 {
		from = f.spans[n-2].end
		from += bytes.IndexByte(f.data[from:], ',') + 1
	}
	ins := append([]byte{','}, f.data[from:neighbour.start]...)
	ins = styleOf(f.data, neighbour).render(ins, entry, top(entry), 0)
	return splice(f.data, span{neighbour.end, neighbour.end}, ins)
}

// cut removes plugin i with the comma and the space before it, the inverse of append; the first one with those behind it.
func (f *File) cut(i int) []byte {
	switch {
	case i > 0:
		return splice(f.data, span{f.spans[i-1].end, f.spans[i].end}, nil)
	case len(f.spans) > 1:
		return splice(f.data, span{f.spans[0].start, f.spans[1].start}, nil)
	}
	return splice(f.data, f.spans[0], nil)
}

func splice(data []byte, at span, with []byte) []byte {
	out := make([]byte, 0, len(data)+len(with))
	out = append(out, data[:at.start]...)
	out = append(out, with...)
	return append(out, data[at.end:]...)
}

func sameJSON(a, b []byte) bool {
	decode := func(raw []byte) (v any) {
		d := json.NewDecoder(bytes.NewReader(raw))
		d.UseNumber() // 9007199254740993 and ...992 are two values
		if d.Decode(&v) != nil {
			return nil
		}
		return v
	}
	return reflect.DeepEqual(decode(a), decode(b))
}

func quote(s string) string {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(s) // a string always encodes
	return strings.TrimSuffix(b.String(), "\n")
}
