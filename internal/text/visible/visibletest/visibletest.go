// Package visibletest gives printers values whose every text is a hostile one, and counts the lines.
package visibletest

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/meshcni/meshcni/internal/text/visible"
)

// Hostile is a text that ends its line in each way that there is, with what looks like a line of ours, and turns the rest around.
const Hostile = "x\nFORGED: all is well\rFORGED\vFORGED\fFORGED\u0085FORGED\u2028FORGED\u2029FORGED\x1b[2K\x1b[1GFORGED\u202eFORGED\tFORGED\x00\xff"

// Fill sets every text that v points to, those in structs, lists, maps and pointers included, which it makes. Of each list and map it makes two
// elements. What is neither a text nor holds one stays.
func Fill(v any, text string) { fill(reflect.ValueOf(v).Elem(), text, 0) }

// deepest bounds types that hold themselves.
const deepest = 8

var raw = reflect.TypeFor[json.RawMessage]()

func fill(v reflect.Value, text string, depth int) {
	if !v.CanSet() || depth > deepest {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(text)
	case reflect.Pointer:
		if v.IsNil() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		fill(v.Elem(), text, depth+1)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), text, depth+1)
		}
	case reflect.Slice:
		if v.Type() == raw {
			quoted, _ := json.Marshal(text) // which it always can
			v.SetBytes(quoted)
			return
		}
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			fill(v.Index(i), text, depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range 2 {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fill(key, text+strconv.Itoa(i), depth+1)
			fill(value, text, depth+1)
			v.SetMapIndex(key, value)
		}
	default: // numbers and such, and interfaces, of which nothing is known
	}
}

// Check prints a value of type T twice, with plain texts and with [Hostile] ones: the lines have to be as many, and all that they have has to
// print. Each, which may be nil, changes what was filled.
func Check[T any](t *testing.T, name string, each func(*T), print func(*visible.Printer, T)) {
	t.Helper()
	said := func(text string) string {
		var v T
		Fill(&v, text)
		if each != nil {
			each(&v)
		}
		var b strings.Builder
		p := visible.To(&b)
		print(p, v)
		if err := p.Err(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		return b.String()
	}
	plain, hostile := said("plain"), said(Hostile)
	if !strings.Contains(plain, "plain") {
		t.Errorf("%s prints none of its texts:\n%s", name, plain)
	}
	if got, want := strings.Count(hostile, "\n"), strings.Count(plain, "\n"); got != want {
		t.Errorf("%s: hostile texts make %d lines of %d:\n%s", name, got, want, hostile)
	}
	Lines(t, name, hostile)
}

// Lines reports lines of an output that begin as a forged one does, and what does not print.
func Lines(t *testing.T, name, output string) {
	t.Helper()
	for line := range strings.Lines(output) {
		if strings.HasPrefix(strings.TrimSpace(line), "FORGED") {
			t.Errorf("%s: a forged line: %q", name, line)
		}
		for _, r := range strings.TrimSuffix(line, "\n") {
			if !strconv.IsPrint(r) {
				t.Errorf("%s: %q does not print: %q", name, r, line)
				break
			}
		}
	}
}
