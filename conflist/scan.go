package conflist

import "encoding/json"

// span is a half-open byte range of the scanned text.
type span struct{ start, end int }

func (s span) of(b []byte) []byte { return b[s.start:s.end] }

// member is one key of an object, in the order found.
type member struct {
	name     string
	key, val span
}

// The scanner finds positions only, and only in text that encoding/json has accepted: it therefore has no error path.

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\r' }

func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

// top is the one value of a document, without the white space around it.
func top(b []byte) span {
	start := skipSpace(b, 0)
	return span{start, valueEnd(b, start)}
}

func stringEnd(b []byte, i int) int {
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(b)
}

func valueEnd(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			i = stringEnd(b, i)
		case '{', '[':
			depth++
			i++
			continue
		case '}', ']':
			depth--
			i++
		case ' ', '\t', '\r', '\n', ',', ':':
			i++
			continue
		default: // number, true, false, null
			for i < len(b) && !isSpace(b[i]) && b[i] != ',' && b[i] != '}' && b[i] != ']' {
				i++
			}
		}
		if depth == 0 {
			return i
		}
	}
	return i
}

func members(b []byte, obj span) []member {
	var out []member
	for i := skipSpace(b, obj.start+1); i < obj.end-1; {
		key := span{i, stringEnd(b, i)}
		i = skipSpace(b, skipSpace(b, key.end)+1)
		val := span{i, valueEnd(b, i)}
		var name string
		_ = json.Unmarshal(key.of(b), &name) // a string of a valid document
		out = append(out, member{name, key, val})
		if i = skipSpace(b, val.end); i < obj.end-1 {
			i = skipSpace(b, i+1)
		}
	}
	return out
}

func elements(b []byte, arr span) []span {
	var out []span
	for i := skipSpace(b, arr.start+1); i < arr.end-1; {
		val := span{i, valueEnd(b, i)}
		out = append(out, val)
		if i = skipSpace(b, val.end); i < arr.end-1 {
			i = skipSpace(b, i+1)
		}
	}
	return out
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
