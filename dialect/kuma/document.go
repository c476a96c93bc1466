package kuma

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/internal/podyaml"
)

// documents remembers the last YAML read. A pod's is needed for the decision and for its rules, and reading it costs more
// than everything else.
type documents struct{ last atomic.Pointer[document] }

// document is the YAML of [Config]. It does not change.
type document struct {
	text    string
	values  map[string][]string // of the settings that it has, by their paths
	ebpf    bool                // it asks for eBPF
	unknown []string            // paths of keys that are no settings
	err     error
}

func (d *documents) read(text string) *document {
	if last := d.last.Load(); last != nil && last.text == text {
		return last
	}
	doc := &document{text: text, values: map[string][]string{}}
	doc.err = doc.decode()
	d.last.Store(doc)
	return doc
}

// has reports whether a flag is set.
func (d *document) has(path string) bool { return slices.Equal(d.values[path], []string{"true"}) }

func (d *document) decode() error {
	b, err := podyaml.ToJSON([]byte(d.text), 0)
	if err != nil {
		return err
	}
	var all any
	numbers := json.NewDecoder(bytes.NewReader(b))
	numbers.UseNumber()
	if err := numbers.Decode(&all); err != nil {
		return err
	}
	return d.section("", all)
}

// section reads an object, whose settings' paths begin with at. Kuma ignores keys that it does not know, but a misspelled or
// newer setting should not go unnoticed.
func (d *document) section(at string, v any) error {
	keys, err := objectOf(at, v)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		path, s := find(at, key)
		switch {
		case path == "":
			d.unknown = append(d.unknown, at+key)
		case s == nil:
			err = d.section(path+".", keys[key])
		default:
			err = d.leaf(s, keys[key])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *document) leaf(s *setting, v any) error {
	if s.kind == object {
		keys, err := objectOf(s.path, v)
		d.ebpf = keys["enabled"] == true
		return err
	}
	values, err := s.kind.values(v)
	if err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	if len(values) > 0 {
		d.values[s.path] = values
	}
	return nil
}

// find returns the path of a key as the settings spell it, empty if there is none, and the setting unless it is a section.
// As in encoding/json, case does not matter.
func find(at, key string) (string, *setting) {
	for i, s := range settings {
		rest, inside := strings.CutPrefix(s.path, at)
		name, _, section := strings.Cut(rest, ".")
		switch {
		case !inside || s.path == "" || !strings.EqualFold(name, key):
		case section:
			return at + name, nil
		default:
			return s.path, &settings[i]
		}
	}
	return "", nil
}

// kind is what a setting is in the YAML.
type kind int

const (
	anything kind = iota // not read
	flag
	one    // text or a number
	many   // a list of these, or one with commas
	object // with keys that are not all known
)

// values returns the texts of a value; none: it is null or empty, which means nothing.
func (k kind) values(v any) ([]string, error) {
	text, isText := textOf(v)
	list, isList := v.([]any)
	on, isFlag := v.(bool)
	switch {
	case v == nil || k == anything:
		return nil, nil
	case k == flag && isFlag:
		return []string{strconv.FormatBool(on)}, nil
	case k == flag:
		return nil, wanted(v, "neither true nor false")
	case k == one && isText && text == "":
		return nil, nil
	case k == one && isText:
		return []string{text}, nil
	case k == one:
		return nil, wanted(v, "neither text nor a number")
	case isText:
		return strings.Split(text, ","), nil
	case !isList:
		return nil, wanted(v, "neither a list nor text")
	}
	var texts []string
	for _, e := range list {
		text, isText := textOf(e)
		if !isText && e != nil {
			return nil, wanted(e, "neither text nor a number")
		}
		texts = append(texts, text)
	}
	return texts, nil
}

// objectOf returns the keys of an object, or of null, which has none.
func objectOf(path string, v any) (map[string]any, error) {
	keys, ok := v.(map[string]any)
	if !ok && v != nil {
		return nil, fmt.Errorf("%s: %w", cmp.Or(strings.TrimSuffix(path, "."), "document"), wanted(v, "no object"))
	}
	return keys, nil
}

func textOf(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	}
	return "", false
}

func wanted(v any, is string) error { return fmt.Errorf("%s is %s", brief.Quote(fmt.Sprint(v)), is) }

// some returns the first few of a list, for people.
func some(list []string) string {
	const few, long = 5, 64 // a warning's worth; the longest place of Kuma's own has 47 bytes
	var shown []string
	for _, s := range list[:min(few, len(list))] {
		shown = append(shown, fmt.Sprintf("%.*q", long, s))
	}
	if more := len(list) - few; more > 0 {
		shown = append(shown, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(shown, ", ")
}
