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

	"github.com/meshcni/meshcni/internal/text/podyaml"
	"github.com/meshcni/meshcni/internal/text/truncate"
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
	keys, err := object(at, v)
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
	if s.path == ebpf {
		keys, err := object(ebpf, v)
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
	all := settings()
	for i, s := range all {
		rest, inside := strings.CutPrefix(s.path, at)
		name, _, section := strings.Cut(rest, ".")
		switch {
		case !inside || s.path == "" || !strings.EqualFold(name, key):
		case section:
			return at + name, nil
		default:
			return s.path, &all[i]
		}
	}
	return "", nil
}

// kind is a setting's type in the YAML.
type kind int

const (
	anything kind = iota // not read
	flag
	one  // text or a number
	many // a list of these, or one with commas
)

// values returns the texts of a value; none: it is null or empty, which means nothing.
func (k kind) values(v any) (texts []string, err error) {
	if v == nil || k == anything {
		return nil, nil
	}
	switch v := v.(type) {
	case bool:
		if k == flag {
			return []string{strconv.FormatBool(v)}, nil
		}
	case string, json.Number:
		switch text := fmt.Sprint(v); {
		case k == many:
			return strings.Split(text, ","), nil
		case k == one && text == "":
			return nil, nil
		case k == one:
			return []string{text}, nil
		}
	case []any:
		for _, e := range v {
			if text, err := one.values(e); err == nil {
				texts = append(texts, strings.Join(text, "")) // of null: ""
			}
		}
		if k == many && len(texts) == len(v) {
			return texts, nil
		}
	}
	wanted := [...]string{flag: "neither true nor false", one: "neither text nor a number", many: "neither a list nor text"}
	return nil, fmt.Errorf("%s is %s", truncate.Quote(fmt.Sprint(v)), wanted[k])
}

// object returns the keys of an object, or of null, which has none.
func object(path string, v any) (map[string]any, error) {
	keys, ok := v.(map[string]any)
	if !ok && v != nil {
		return nil, fmt.Errorf("%s: %s is no object", cmp.Or(strings.TrimSuffix(path, "."), "document"), truncate.Quote(fmt.Sprint(v)))
	}
	return keys, nil
}

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
