package redirectcmd_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni"
	"github.com/meshcni/meshcni/status"
)

// TestExplainCode: a code alone is explained by the table from which all programs speak, whatever is installed.
func TestExplainCode(t *testing.T) {
	t.Parallel()
	for _, r := range status.Table() {
		got := call{}.run(t, "explain", string(r.Code))
		assert.Zero(t, got.code, r.Code)
		assert.Contains(t, got.out, string(r.Code)+" ("+string(r.Kind)+"): "+r.Sentence+"\n")
		assert.Contains(t, got.out, "  "+r.URL(meshcni.Identity{})+"\n")
		for _, do := range r.Do {
			assert.Contains(t, got.out, "  - "+string(do)+"\n")
		}
	}
	got := call{}.run(t, "explain", "no-proxy", "-o", "json")
	var rows []status.Row
	require.NoError(t, json.Unmarshal([]byte(got.out), &rows), got.out)
	assert.Equal(t, status.Rows("no-proxy"), rows)

	got = call{}.run(t, "explain", "no-such-code")
	assert.Equal(t, 2, got.code)
	assert.Contains(t, got.errOut, `"no-such-code": not a code of this version`)
	assert.Empty(t, got.out)
	got = call{}.run(t, "explain", "no-proxy", "-f", "pod.yaml")
	assert.Equal(t, 2, got.code)
	assert.Contains(t, got.errOut, "no-proxy: one code, or the pod of -f")
	assert.Equal(t, 2, call{}.run(t, "explain", "no-proxy", "ends").code)
}
