package repair

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestCodesAreExplained: docs/troubleshooting.md explains each code of repair, and no other.
func TestCodesAreExplained(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../docs/troubleshooting.md")
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(text), "\n## Repair\n")
	require.True(t, ok)
	section, _, _ := strings.Cut(rest, "\n## ")
	code := regexp.MustCompile("`([^`{]+)(?:\\{[^`]*)?`")
	explained := map[string]bool{}
	for line := range strings.Lines(section) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, m := range code.FindAllStringSubmatch(cells[1]+cells[2], -1) {
			explained[m[1]] = true
		}
	}
	given := map[string]bool{eventDrifted: true, eventRestored: true, eventUncaptured: true}
	for _, r := range Reasons {
		given[string(r)] = true
	}
	for _, o := range Outcomes {
		given[string(o)] = true
	}
	for _, v := range verifications {
		given[string(v)] = true
	}
	for _, e := range eventReasons {
		given[e.reason] = true
	}
	assert.Equal(t, given, explained)
	_, detection, _ := strings.Cut(string(text), "\n### A pod started without the plugin\n")
	detection, _, _ = strings.Cut(detection, "\n## ")
	assert.Contains(t, detection, eventUncaptured)
	assert.Contains(t, string(text), "`"+eventBypass+"`")
	for _, r := range []heldReason{heldNotInstalled, heldNotConfined, heldShare, heldSuccessor} {
		assert.Contains(t, section, "`"+string(r)+"`", "why deletions are held back")
	}
}
