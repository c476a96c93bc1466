package repair

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/status"
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
	given := map[string]bool{}
	for _, r := range status.Table() {
		if r.Kind != status.KindCheck && r.Kind != status.KindOutcome && r.Kind != status.KindVerification {
			continue
		}
		if given[string(r.Code)] = true; r.Event != "" {
			given[r.Event] = true
		}
	}
	assert.Equal(t, given, explained)
	_, detection, _ := strings.Cut(string(text), "\n### A pod started without the plugin\n")
	detection, _, _ = strings.Cut(detection, "\n## ")
	assert.Contains(t, detection, "MeshNotCaptured")
	assert.Contains(t, string(text), "`"+eventBypass+"`")
	for _, r := range []status.Code{status.CodePluginNotReady, status.CodeNotConfined, status.CodeTooManyBroken, status.CodeSuccessorBroken} {
		assert.Contains(t, section, "`"+string(r)+"`", "why deletions are held back")
	}
}
