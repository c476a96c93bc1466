package kuma

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/meshcni/meshcni/internal/podyaml"
)

// documents remembers the last YAML read. A pod's is needed for the decision and for
// its rules, and reading it costs more than everything else.
type documents struct{ last atomic.Pointer[reading] }

// reading is the result of reading YAML. It does not change.
type reading struct {
	value    string
	document document
	unread   []string
	err      error
}

func (d *documents) read(value string) *reading {
	if last := d.last.Load(); last != nil && last.value == value {
		return last
	}
	r := &reading{value: value}
	r.document, r.unread, r.err = decode(value)
	d.last.Store(r)
	return r
}

// decode reads the YAML. It also returns the paths of unknown keys, sorted. Kuma
// ignores them, but a misspelled or newer setting should not go unnoticed.
func decode(value string) (document, []string, error) {
	var d document
	b, err := podyaml.ToJSON([]byte(value), 0)
	if err != nil {
		return d, nil, err
	}
	strict := json.NewDecoder(bytes.NewReader(b))
	strict.DisallowUnknownFields()
	if strict.Decode(&d) == nil {
		return d, nil, nil // as the injector writes it
	}
	d = document{}
	if err := json.Unmarshal(b, &d); err != nil {
		return d, nil, err
	}
	var all any
	if err := json.Unmarshal(b, &all); err != nil {
		return d, nil, err
	}
	return d, unknown("", all, reflect.TypeFor[document]()), nil
}

// unknown lists the keys of a value for which the type has no field.
func unknown(at string, value any, t reflect.Type) []string {
	object, ok := value.(map[string]any)
	if !ok || t.Kind() != reflect.Struct {
		return nil
	}
	var keys []string
	for _, key := range slices.Sorted(maps.Keys(object)) {
		if field, ok := fieldOf(t, key); ok {
			keys = append(keys, unknown(at+key+".", object[key], field.Type)...)
		} else {
			keys = append(keys, at+key)
		}
	}
	return keys
}

// fieldOf finds the field that encoding/json would set: it ignores the key's case.
func fieldOf(t reflect.Type, key string) (reflect.StructField, bool) {
	for i := range t.NumField() {
		if f := t.Field(i); strings.EqualFold(f.Tag.Get("json"), key) {
			return f, true
		}
	}
	return reflect.StructField{}, false
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
