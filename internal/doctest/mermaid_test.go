package doctest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestMermaid: what would keep a picture from being drawn, as far as that can be said without drawing it.
func TestMermaid(t *testing.T) {
	for _, file := range files(t, ".md") {
		for _, b := range blocksOf(t, file) {
			if b.Lang != "mermaid" {
				continue
			}
			kind, rest, _ := strings.Cut(strings.TrimSpace(b.Text), "\n")
			kind, _, _ = strings.Cut(kind, " ")
			assert.Contains(t, []string{"flowchart", "sequenceDiagram", "stateDiagram-v2"}, kind, "%s", b)
			opened := 0
			for line := range strings.Lines(rest) {
				line = strings.TrimSpace(line)
				word, _, _ := strings.Cut(line, " ")
				switch word {
				case "subgraph", "alt", "opt", "loop", "par":
					opened++
				case "end":
					opened--
				}
				if kind == "sequenceDiagram" {
					assert.NotContains(t, line, ";", "%s: a semicolon ends a statement", b)
				} else {
					assert.Zero(t, strings.Count(line, `"`)%2, "%s: a label that does not end: %s", b, line)
				}
			}
			assert.Zero(t, opened, "%s: not every part ends", b)
		}
	}
}
