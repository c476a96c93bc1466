// Package jsonkeys reads a JSON object of settings into a struct. It names every key whose value is wrong, and every key that no field has.
package jsonkeys

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/internal/text/truncate"
)

// Take removes a key. A null counts as absent.
func Take(keys map[string]json.RawMessage, key string) json.RawMessage {
	raw := keys[key]
	delete(keys, key)
	if string(raw) == "null" {
		return nil
	}
	return raw
}

// Fault tells of one wrong key.
type Fault struct {
	// Path is the key with those above it, such as "kubernetes.exclude_namespaces".
	Path string
	Err  error
}

// Error returns the path and the fault.
func (f *Fault) Error() string { return f.Path + ": " + f.Err.Error() }

// Unwrap returns the fault.
func (f *Fault) Unwrap() error { return f.Err }

// Parser collects what is wrong and what is unknown.
type Parser struct {
	Faults  []*Fault
	Unknown []string
}

// Err joins the faults.
func (p *Parser) Err() error {
	errs := make([]error, len(p.Faults))
	for i, f := range p.Faults {
		errs[i] = f
	}
	return errors.Join(errs...)
}

// Own is a value that reads itself. It reports by the Parser what is wrong.
type Own interface {
	ParseKey(p *Parser, path string, raw json.RawMessage)
}

// Fields takes the keys of the struct's fields.
func (p *Parser) Fields(path string, keys map[string]json.RawMessage, into reflect.Value) {
	for i := range into.NumField() {
		key, _, _ := strings.Cut(into.Type().Field(i).Tag.Get("json"), ",")
		if key != "-" {
			p.Value(path+key, Take(keys, key), into.Field(i))
		}
	}
}

// Rest makes the keys that nobody took unknown. The specification reserves those that begin with "cni.dev/".
func (p *Parser) Rest(path string, keys map[string]json.RawMessage) {
	for key := range keys {
		if !strings.HasPrefix(key, "cni.dev/") {
			p.Unknown = append(p.Unknown, path+key)
		}
	}
}

// Strangers makes the keys that nobody took mistakes.
func (p *Parser) Strangers(path string, keys map[string]json.RawMessage) {
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		p.Wrong(path+key, "unknown key")
	}
}

// Value reads one value. An empty string counts as absent.
func (p *Parser) Value(path string, raw json.RawMessage, into reflect.Value) {
	if raw == nil {
		return
	}
	read := func(want string, value any) bool {
		err := json.Unmarshal(raw, value)
		if err != nil {
			p.Wrong(path, "want %s, not %s", want, Abbreviate(raw))
		}
		return err == nil
	}
	value := into.Addr().Interface()
	if own, ok := value.(Own); ok {
		own.ParseKey(p, path, raw)
		return
	}
	if own, ok := value.(json.Unmarshaler); ok {
		if err := own.UnmarshalJSON(raw); err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				p.Wrong(path, "%s", line)
			}
		}
		return
	}
	text, isText := value.(encoding.TextUnmarshaler)
	var s string
	var object map[string]json.RawMessage
	switch kind := into.Kind(); {
	case isText:
		if read("a string", &s) && s != "" {
			if err := text.UnmarshalText([]byte(s)); err != nil {
				p.Wrong(path, "%v", err)
			}
		}
	case kind == reflect.Struct:
		if read("an object", &object) {
			p.Fields(path+".", object, into)
			p.Rest(path+".", object)
		}
	case kind == reflect.Bool:
		read("true or false", value)
	case kind == reflect.Slice:
		read("a list of strings", value)
	case kind == reflect.Map:
		read("an object of strings", value)
	default:
		read("a string", value)
	}
}

// maxWrong bounds the bytes that an error has about one key.
const maxWrong = 400

// Wrong adds what is wrong with one key.
func (p *Parser) Wrong(path, format string, args ...any) {
	p.Faults = append(p.Faults, &Fault{path, errors.New(truncate.Text(fmt.Sprintf(format, args...), maxWrong))})
}

// Abbreviate returns the beginning of a value, for errors.
func Abbreviate(raw json.RawMessage) string {
	const limit = 60
	if len(raw) > limit {
		return strings.ToValidUTF8(string(raw[:limit]), "") + "…"
	}
	return string(raw)
}
