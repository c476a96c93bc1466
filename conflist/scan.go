package conflist

import (
	"bytes"
	"encoding/json"
)

// span is a half-open byte range of a document.
type span struct{ start, end int }

func (s span) of(b []byte) []byte { return b[s.start:s.end] }

// member is one key of an object, and its value.
type member struct {
	name     string
	key, val span
}

// The functions below find positions in documents that encoding/json has accepted, so they have no error path.

// top is the one value of a document, without the white space around it.
func top(b []byte) span {
	d := json.NewDecoder(bytes.NewReader(b))
	return nextValue(d, 0)
}

// members are those of the object, in order.
func members(b []byte, obj span) []member {
	d := inside(b, obj)
	var out []member
	for d.More() {
		// Between a value and the next key are white space and a comma.
		at := obj.start + int(d.InputOffset())
		start := at + bytes.IndexByte(b[at:], '"')
		name, _ := d.Token()
		key := span{start, obj.start + int(d.InputOffset())}
		out = append(out, member{name.(string), key, nextValue(d, obj.start)})
	}
	return out
}

// elements are those of the array, in order.
func elements(b []byte, arr span) []span {
	d := inside(b, arr)
	var out []span
	for d.More() {
		out = append(out, nextValue(d, arr.start))
	}
	return out
}

// inside is a decoder behind the opening bracket of an object or array.
func inside(b []byte, within span) *json.Decoder {
	d := json.NewDecoder(bytes.NewReader(within.of(b)))
	_, _ = d.Token()
	return d
}

// nextValue is the decoder's next value, in a document of which it reads the part from base on.
func nextValue(d *json.Decoder, base int) span {
	var raw json.RawMessage
	_ = d.Decode(&raw)
	end := base + int(d.InputOffset())
	return span{end - len(raw), end}
}

// last is the member that a decoder keeps when a key is there twice.
func last(ms []member, name string) (member, bool) {
	for i := len(ms) - 1; i >= 0; i-- {
		if ms[i].name == name {
			return ms[i], true
		}
	}
	return member{}, false
}
