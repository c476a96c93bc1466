package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/internal/text/visible"
)

// RunClean is [Program.Run] of a program whose output has texts of pods: both streams are [CleanWriter], and a run whose output
// was not all written has failed. It sets Root to what root returns, whose commands write to the streams that root gets.
func (p Program) RunClean(ctx context.Context, args []string, root func(stdout, stderr io.Writer) *cobra.Command) int {
	stdout, stderr := &CleanWriter{To: p.Stdout}, &CleanWriter{To: p.Stderr}
	p.Stdout, p.Stderr, p.Root = stdout, stderr, root(stdout, stderr)
	code := p.Run(ctx, args)
	if err := errors.Join(stdout.Err, stderr.Err); code == ExitOK && err != nil {
		visible.To(p.Stderr).Printf("%s: %v\n", p.Name, err)
		return ExitFailed
	}
	return code
}

// CleanWriter keeps terminal control sequences in a pod's text out of our output, JSON included. What is printed for people goes through a
// [visible.Printer] before, which knows which line feeds are ours. It writes characters that do not
// print as \u escapes, which JSON decodes to the same text. Several goroutines may write at a time.
type CleanWriter struct {
	To   io.Writer
	Err  error  // the first error
	rest []byte // an incomplete character at the end of the last write
	mu   sync.Mutex
}

// Write fails if this or an earlier write failed, so it is enough to check Err once at the end.
func (w *CleanWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.Err != nil {
		return 0, w.Err
	}
	in := append(w.rest, p...)
	out := make([]byte, 0, len(in)+16)
	for utf8.FullRune(in) {
		r, n := utf8.DecodeRune(in)
		if r == '\n' || r == '\t' {
			out = append(out, in[0])
		} else {
			out = visible.Append(out, r, n)
		}
		in = in[n:]
	}
	w.rest = bytes.Clone(in)
	if _, err := w.To.Write(out); err != nil {
		w.Err = fmt.Errorf("write output: %w", err)
		return 0, w.Err
	}
	return len(p), nil
}
