// Package visible prints texts that a tenant, a kernel or another program has written. Whoever writes a line feed, or what else
// ends a line or moves the cursor in a terminal, would write lines that look like ours.
//
// [Printer] is what functions that print for people take, in place of an [io.Writer]: each of its operands stays on the line where the
// format puts it, with every character to be seen. JSON is written without it, and stays exact.
package visible

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode/utf16"
	"unicode/utf8"
)

// Line returns s as one line of characters that print. Others become escapes: \n, \r, \t, and \u001b for ESC.
func Line(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r == utf8.RuneError || !strconv.IsPrint(r) }) {
		return s
	}
	out := make([]byte, 0, len(s)+16)
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == '\n':
			out = append(out, `\n`...)
		case r == '\r':
			out = append(out, `\r`...)
		case r == '\t':
			out = append(out, `\t`...)
		default:
			out = Append(out, r, n)
		}
		s = s[n:]
	}
	return string(out)
}

// Append appends a character of n bytes: as it is if it prints, else as the \u escapes that JSON has for it. Bytes that are no
// character are that of [utf8.RuneError].
func Append(out []byte, r rune, n int) []byte {
	switch {
	case r == utf8.RuneError && n == 1:
		return append(out, `\ufffd`...)
	case strconv.IsPrint(r):
		return utf8.AppendRune(out, r)
	case r > 0xffff:
		high, low := utf16.EncodeRune(r)
		return fmt.Appendf(out, `\u%04x\u%04x`, high, low)
	}
	return fmt.Appendf(out, `\u%04x`, r)
}

// operand is a value that formats to one line.
type operand struct{ value any }

// Format implements [fmt.Formatter].
func (o operand) Format(f fmt.State, verb rune) {
	_, _ = io.WriteString(f, Line(fmt.Sprintf(fmt.FormatString(f, verb), o.value)))
}

func all(operands []any) []any {
	out := make([]any, len(operands))
	for i, o := range operands {
		out[i] = operand{o}
	}
	return out
}

// Printer prints for people. Make one with [To].
type Printer struct {
	w   io.Writer
	n   int64
	err error
}

// To prints to w.
func To(w io.Writer) *Printer { return &Printer{w: w} }

// Err is the first error of the writer. After it nothing is written.
func (p *Printer) Err() error { return p.err }

// Written counts the bytes that were written.
func (p *Printer) Written() int64 { return p.n }

// Printf prints the format, which is a constant of ours, with operands that cannot end a line.
func (p *Printer) Printf(format string, operands ...any) {
	p.write(fmt.Sprintf(format, all(operands)...))
}

// Text prints a text of our own making, such as a program of rules, with its line feeds and tabs. Which of them are not ours it cannot
// tell, so it is not for what others have written.
func (p *Printer) Text(s string) { p.write(text(s)) }

// text is s with escapes for all that does not print but line feeds and tabs.
func text(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return r != '\n' && r != '\t' && (r == utf8.RuneError || !strconv.IsPrint(r)) }) {
		return s
	}
	out := make([]byte, 0, len(s)+16)
	for s != "" {
		r, n := utf8.DecodeRuneInString(s)
		if r == '\n' || r == '\t' {
			out = append(out, s[0])
		} else {
			out = Append(out, r, n)
		}
		s = s[n:]
	}
	return string(out)
}

// JSON passes on what is written, which must be whole texts of JSON, such as those of [encoding/json.Encoder] and [log/slog.JSONHandler], with
// escapes for the characters that do not print. Go escapes only ASCII's and two others, and terminals heed NEL, the CSI of eight bits and
// what turns the direction of a line around. The texts decode to what they did.
func JSON(w io.Writer) io.Writer { return jsonWriter{w} }

type jsonWriter struct{ w io.Writer }

func (j jsonWriter) Write(p []byte) (int, error) {
	if _, err := io.WriteString(j.w, text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (p *Printer) write(s string) {
	if p.err == nil {
		n, err := io.WriteString(p.w, s)
		p.n, p.err = p.n+int64(n), err
	}
}

// Table prints columns that a tab in the format ends. Make one with [Printer.Table].
type Table struct {
	Printer
	to   *Printer
	tabs *tabwriter.Writer
}

// Table aligns what it is given, until it is flushed.
func (p *Printer) Table() *Table {
	tabs := tabwriter.NewWriter(aligned{p}, 0, 0, 2, ' ', 0)
	return &Table{Printer{w: tabs}, p, tabs}
}

// Flush writes the table. The error is that of the printer.
func (t *Table) Flush() error {
	_ = t.tabs.Flush() // the printer has the error
	return t.to.err
}

// aligned takes what a table has aligned.
type aligned struct{ to *Printer }

func (a aligned) Write(b []byte) (int, error) {
	a.to.write(string(b))
	return len(b), a.to.err
}
