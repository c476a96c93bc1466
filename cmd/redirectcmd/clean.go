package redirectcmd

import (
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// cleanWriter lets nothing through that a terminal would take for a command:
// what pods say ends up in our output. Characters that don't print become \u
// escapes, which JSON reads back as the same text.
type cleanWriter struct {
	to   io.Writer
	rest []byte // the beginning of a character whose end is still to come
	err  error  // the first failure
}

// Write never returns an error before the streams' first one: callers that
// print many small pieces ask once, at the end.
func (w *cleanWriter) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	in := append(w.rest, p...)
	out := make([]byte, 0, len(in)+16)
	for len(in) > 0 {
		if !utf8.FullRune(in) {
			break
		}
		r, n := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\ufffd`)
		case r == '\n' || r == '\t' || strconv.IsPrint(r):
			out = append(out, in[:n]...)
		case r > 0xffff:
			// JSON writes such a character as a surrogate pair.
			out = fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		in = in[n:]
	}
	w.rest = append([]byte(nil), in...)
	if _, err := w.to.Write(out); err != nil {
		w.err = fmt.Errorf("write output: %w", err)
		return 0, w.err
	}
	return len(p), nil
}
