package conflist

import (
	"bytes"
	"strings"
)

// style is a neighbour's layout, so that an entry put beside it does not stand out.
type style struct {
	multiline bool
	nl        string // line ending
	indent    string // of the first keys
	closing   string // of the closing brace
	unit      string // one level
	colon     string // between key and value, colon included
	comma     string // between values on one line, comma included
	pad       string // inside the braces of a one-line object
}

func styleOf(b []byte, obj span) style {
	st := style{nl: "\n", colon: ":", comma: ","}
	ms := members(b, obj)
	if len(ms) == 0 {
		return st
	}
	if c := string(b[ms[0].key.end:ms[0].val.start]); !strings.ContainsAny(c, "\r\n") {
		st.colon = c
	} else {
		st.colon = ": "
	}
	open := b[obj.start+1 : ms[0].key.start]
	i := bytes.LastIndexByte(open, '\n')
	if i < 0 {
		st.pad = string(bytes.TrimRight(open, "\r"))
		if strings.HasSuffix(st.colon, " ") {
			st.comma = ", "
		}
		return st
	}
	st.multiline, st.comma = true, ", "
	if bytes.Contains(open, []byte("\r\n")) {
		st.nl = "\r\n"
	}
	st.indent = strings.TrimRight(string(open[i+1:]), "\r")
	end := b[ms[len(ms)-1].val.end : obj.end-1]
	if j := bytes.LastIndexByte(end, '\n'); j >= 0 {
		st.closing = strings.TrimRight(string(end[j+1:]), "\r")
	} else {
		st.closing = lineIndent(b, obj.start)
	}
	if rest, ok := strings.CutPrefix(st.indent, st.closing); ok && rest != "" {
		st.unit = rest
	} else if strings.Contains(st.indent, "\t") {
		st.unit = "\t"
	} else if st.indent != "" {
		st.unit = "  "
	}
	return st
}

// lineIndent is the white space that begins the line of position i.
func lineIndent(b []byte, i int) string {
	start := bytes.LastIndexByte(b[:i], '\n') + 1
	text := bytes.TrimLeft(b[start:i], " \t")
	return string(b[start : i-len(text)])
}

// render appends the value v of src, a valid document, in the style. Keys keep their order, scalars their spelling; arrays
// of scalars stay on one line.
func (st style) render(out, src []byte, v span, depth int) []byte {
	switch src[v.start] {
	case '{':
		ms := members(src, v)
		if len(ms) == 0 {
			return append(out, "{}"...)
		}
		return st.block(out, '{', '}', len(ms), depth, st.multiline, func(out []byte, i int) []byte {
			out = append(out, ms[i].key.of(src)...)
			out = append(out, st.colon...)
			return st.render(out, src, ms[i].val, depth+1)
		})
	case '[':
		es := elements(src, v)
		nested := false
		for _, e := range es {
			nested = nested || src[e.start] == '{' || src[e.start] == '['
		}
		if len(es) == 0 {
			return append(out, "[]"...)
		}
		return st.block(out, '[', ']', len(es), depth, st.multiline && nested, func(out []byte, i int) []byte {
			return st.render(out, src, es[i], depth+1)
		})
	default:
		return append(out, v.of(src)...)
	}
}

func (st style) block(out []byte, open, end byte, n, depth int, lines bool, item func([]byte, int) []byte) []byte {
	out = append(out, open)
	for i := range n {
		switch {
		case lines:
			if i > 0 {
				out = append(out, ',')
			}
			out = append(out, st.nl+st.indent+strings.Repeat(st.unit, depth)...)
		case i > 0:
			out = append(out, st.comma...)
		case open == '{':
			out = append(out, st.pad...)
		}
		out = item(out, i)
	}
	switch {
	case lines:
		out = append(out, st.nl+st.closing+strings.Repeat(st.unit, depth)...)
	case open == '{':
		out = append(out, st.pad...)
	}
	return append(out, end)
}
