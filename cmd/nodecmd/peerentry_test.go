//go:build linux

package nodecmd

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/internal/peerentry"
)

// TestPeerEntry: the command says on standard output what has become of the list, and nothing on standard error; what is refused is
// there, and an exit code.
func TestPeerEntry(t *testing.T) {
	dir, bin := t.TempDir(), t.TempDir()
	file := filepath.Join(dir, "10-x.conflist")
	both := `{"name":"net","plugins":[{"type":"ptp"},{"type":"kuma-cni"},{"type":"meshcni"}]}`
	require.NoError(t, os.WriteFile(file, []byte(both), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "kuma-cni"), nil, 0o755))
	run := func(args ...string) (code int, s peerentry.State, errs string) {
		var out, stderr bytes.Buffer
		code = Program{Stdout: &out, Stderr: &stderr}.Main(t.Context(), append([]string{"peer-entry"}, args...))
		if code == 0 {
			require.NoError(t, json.Unmarshal(out.Bytes(), &s))
		} else {
			assert.Empty(t, out.String())
		}
		return code, s, stderr.String()
	}
	where := []string{"--type=kuma-cni", "--cni-conf-dir=" + dir, "--cni-bin-dir=" + bin}
	for _, tc := range []struct {
		words   []string
		chained bool
		changed bool
		kept    bool
	}{
		{words: []string{"show"}, chained: true},
		{words: []string{"take", "--dry-run"}, chained: true, changed: true},
		{words: []string{"take"}, changed: true, kept: true},
		{words: []string{"show"}, kept: true},
		{words: []string{"restore", "--dry-run"}, changed: true, kept: true},
		{words: []string{"restore"}, chained: true, changed: true},
	} {
		code, s, errs := run(append(tc.words, where...)...)
		require.Equal(t, 0, code, errs)
		assert.Empty(t, errs)
		assert.Equal(t, []bool{tc.chained, tc.changed, tc.kept}, []bool{s.Chained, s.Changed, s.Kept != nil}, "%q", tc.words)
		assert.Equal(t, "10-x.conflist", s.File)
		if s.Kept != nil {
			assert.Empty(t, s.Kept.List)
		}
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, both, string(text))

	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"show", "--type=../x", where[1], where[2]}, 2, "no type of another plugin"},
		{[]string{"show", "--type=meshcni", where[1], where[2]}, 2, "no type of another plugin"},
		{[]string{"take", where[0], where[1]}, 2, "--cni-conf-dir and --cni-bin-dir are needed"},
		{append([]string{"restore", "--type=istio-cni"}, where[1:]...), 1, "10-x.conflist: nothing that was taken out is kept on the node"},
	} {
		code, _, errs := run(tc.args...)
		assert.Equal(t, tc.code, code, "%q", tc.args)
		assert.Contains(t, errs, tc.want)
	}
}
