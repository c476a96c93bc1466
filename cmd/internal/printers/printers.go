// Package printers has the flags of the commands rules and trace, and prints for them what becomes of a pod. meshcni-redirect takes the pod
// from files, kubectl meshcni from a cluster.
package printers

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/meshcni/meshcni/explain"
	"github.com/meshcni/meshcni/internal/text/documents"
	"github.com/meshcni/meshcni/internal/text/visible"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Streams are those of a program. Answers go to Out, and what is said beside them to Err.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// ReadFile reads a file that a flag names.
	ReadFile func(name string) ([]byte, error)
}

// Read returns the content of a file with one manifest, or of standard input if its name is "-".
func (s Streams) Read(name string) ([]byte, error) { return s.ReadUpTo(name, documents.MaxSize) }

// ReadUpTo is [Streams.Read] of what has at most so many bytes.
func (s Streams) ReadUpTo(name string, most int) (b []byte, err error) {
	if name == "-" {
		name = "standard input"
		if b, err = io.ReadAll(io.LimitReader(s.In, int64(most)+1)); err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
	} else if b, err = s.ReadFile(name); err != nil {
		return nil, err
	}
	if len(b) > most {
		return nil, fmt.Errorf("read %s: larger than %d MiB", name, most>>20)
	}
	return b, nil
}

// JSON writes a value, indented.
func JSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// Configuration writes which configuration counts, as the first line of what a command prints for people. Where there is no node, only
// explain says so.
func Configuration(w io.Writer, comment string, c explain.Configuration) {
	if c.Expected {
		visible.To(w).Printf("%s%s\n", comment, c)
	}
}

// Warn prints bypasses and warnings. It leaves bypasses that are only possible to explain, which describes the pod as a whole.
func Warn(w io.Writer, x explain.Explanation) {
	for _, b := range x.Plan.Bypasses {
		if !b.Unsure {
			visible.To(w).Printf("WARNING: %s\n", b)
		}
	}
	for _, warning := range x.Warnings {
		visible.To(w).Printf("warning: %s\n", warning)
	}
}

// Unselected describes a pod for which nothing is to be done.
func Unselected(x explain.Explanation) string {
	return fmt.Sprintf("pod %s is not in the mesh: %s: %s", x.Pod, x.Decision.Reason, x.Decision.Detail)
}

// mermaid returns the chart of a single family, or Markdown with a chart for each of two.
func mermaid(rs ruleset.Ruleset, r *trace.Result) string {
	var b strings.Builder
	for _, f := range ruleset.Families {
		if rs.Family(f) == nil {
			continue
		}
		chart := trace.Mermaid(rs, f, r)
		if rs.IPv4 == nil || rs.IPv6 == nil {
			return chart
		}
		fmt.Fprintf(&b, "## %s\n\n```mermaid\n%s```\n\n", f, chart)
	}
	return b.String()
}
