package redirectcmd

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// cleanWriter keeps terminal control sequences in a pod's text out of our output. It writes characters that do not
// print as \u escapes, which JSON decodes to the same text.
type cleanWriter struct {
	to   io.Writer
	rest []byte // an incomplete character at the end of the last write
	err  error  // the first error
}

// Write fails if this or an earlier write failed, so it is enough to check err once at the end.
func (w *cleanWriter) Write(p []byte) (int, error) {
	if w.err != nil {
		return 0, w.err
	}
	in := append(w.rest, p...)
	out := make([]byte, 0, len(in)+16)
	for utf8.FullRune(in) {
		r, n := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\ufffd`)
		case r == '\n' || r == '\t' || strconv.IsPrint(r):
			out = append(out, in[:n]...)
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, high, low)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		in = in[n:]
	}
	w.rest = bytes.Clone(in)
	if _, err := w.to.Write(out); err != nil {
		w.err = fmt.Errorf("write output: %w", err)
		return 0, w.err
	}
	return len(p), nil
}
