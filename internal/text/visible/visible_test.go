package visible_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/text/visible"
)

// breaks are what ends a line, moves the cursor or turns the text around, in a terminal or an editor.
var breaks = []string{
	"\n", "\r", "\r\n", "\v", "\f", "\x85", "\u0085", "\u2028", "\u2029", "\x1b[2K\x1b[1G", "\u009b2K", "\b", "\a", "\x00", "\x7f", "\t", "\x1c", "\x1d", "\x1e",
	"\u202e", "\u202d", "\u2066", "\u2067", "\u2068", "\u2069", "\u200e", "\u200f", "\u061c", "\u200b", "\ufeff", "\u00ad", "\U000e0001", "\xff\xfe",
}

func TestLine(t *testing.T) {
	for _, b := range breaks {
		got := visible.Line("a" + b + "z")
		assert.True(t, strings.HasPrefix(got, `a\`) && strings.HasSuffix(got, "z"), "%q became %q", b, got)
		assert.Equal(t, got, visible.Line(got), "%q: it is done once", b)
		for _, r := range got {
			assert.True(t, r >= ' ' && r <= '~', "%q became %q", b, got)
		}
	}
	for _, s := range []string{"", "plain", "größer → 中文 🎉", `a\nb`, `"q" 'q'`} {
		assert.Equal(t, s, visible.Line(s), "it is visible")
	}
	assert.Equal(t, `a\nb\rc\td\u001be\u2028f\udb40\udc01g\ufffd`, visible.Line("a\nb\rc\td\x1be\u2028f\U000e0001g\xff"))
}

type named string

type stringer struct{ text string }

func (s stringer) String() string { return s.text }

// TestPrinter: whatever is given to a format, it prints the lines and columns of the format.
func TestPrinter(t *testing.T) {
	const evil = "x\ty\nforged\r\v\u2028"
	for _, o := range []any{
		evil, named(evil), []byte(evil), errors.New(evil), stringer{evil}, &stringer{evil}, []string{evil, evil}, map[string]string{evil: evil}, struct{ A string }{evil},
		errors.Join(errors.New(evil), errors.New(evil)), &fs.PathError{Op: "read", Path: evil, Err: fs.ErrNotExist}, json.RawMessage(`"` + evil + `"`),
	} {
		for _, verb := range []string{"%s", "%v", "%+v", "%#v", "%q", "%20s", "%-20v"} {
			var b strings.Builder
			p := visible.To(&b)
			p.Printf("one: "+verb+"\ntwo\n", o)
			require.NoError(t, p.Err())
			assert.Equal(t, 2, strings.Count(b.String(), "\n"), "%s of %T: %q", verb, o, b.String())
			assert.NotContains(t, strings.TrimPrefix(b.String(), "one: "), "\t", "%s of %T", verb, o)
			assert.True(t, utf8.ValidString(b.String()))
			b.Reset()
			table := visible.To(&b).Table()
			table.Printf("A\tB\n"+verb+"\tc\n", o)
			require.NoError(t, table.Flush())
			assert.Len(t, strings.Split(b.String(), "\n"), 3, "%s of %T: %q", verb, o, b.String())
		}
	}
	var b strings.Builder
	visible.To(&b).Printf("%3d %-6s%q %t %.2f", 7, "x\n", "a\nb", true, 1.5)
	assert.Equal(t, `  7 x\n    "a\nb" true 1.50`, b.String(), "verbs do what they do in fmt")
	b.Reset()
	visible.To(&b).Text("one\x1b[1m\n\ttwo\rforged\nend")
	assert.Equal(t, "one\\u001b[1m\n\ttwo\\u000dforged\nend", b.String())
}

type broken struct{ n int }

func (w *broken) Write([]byte) (int, error) { w.n++; return 0, fs.ErrClosed }

func TestPrinterError(t *testing.T) {
	w := &broken{}
	p := visible.To(w)
	p.Printf("a\n")
	p.Text("b\n")
	require.ErrorIs(t, p.Err(), fs.ErrClosed)
	table := p.Table()
	table.Printf("c\n")
	require.ErrorIs(t, table.Flush(), fs.ErrClosed)
	assert.Equal(t, 1, w.n, "nothing is written after it")
}

// TestLines: only what joins errors makes lines, however they are wrapped.
func TestLines(t *testing.T) {
	evil := errors.New("pod a\nkubectl-meshcni: forged")
	one, two := errors.New("one"), errors.New("two")
	for _, test := range []struct {
		err  error
		want []string
	}{
		{nil, nil},
		{evil, []string{"pod a\nkubectl-meshcni: forged"}},
		{errors.Join(one, evil, two), []string{"one", "pod a\nkubectl-meshcni: forged", "two"}},
		{errors.Join(errors.Join(one, nil, two), evil), []string{"one", "two", "pod a\nkubectl-meshcni: forged"}},
		{fmt.Errorf("read: %w (%w) %s", errors.Join(one, two), evil, "x\ny"), []string{"read: one", "two (pod a\nkubectl-meshcni: forged) x\ny"}},
		{fmt.Errorf("%w\n%w", one, evil), []string{"one", "pod a\nkubectl-meshcni: forged"}},
		{fmt.Errorf("a %s: %w\n%w", "x\ny", evil, errors.Join(one, two)), []string{"a x\ny: pod a\nkubectl-meshcni: forged", "one", "two"}},
		{errors.Join(evil), []string{"pod a\nkubectl-meshcni: forged"}},
		{&fs.PathError{Op: "open", Path: "a\nb", Err: errors.Join(one, two)}, []string{"open a\nb: one", "two"}},
	} {
		assert.Equal(t, test.want, visible.Lines(test.err))
	}
}
