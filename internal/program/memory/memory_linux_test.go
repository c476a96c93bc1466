package memory

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestReadOnly: only what the file still has is given back.
func TestReadOnly(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, m := range []struct{ head, anonymous string }{
		{"00400000-00f5c000 r-xp 00000000 fe:00 12 /opt/meshcni-node", "0"},
		{"00f5c000-01add000 r--p 00b5c000 fe:00 12 /opt/meshcni-node (deleted)", "0"},
		{"01add000-01adf000 r--p 00b5e000 fe:00 12 /opt/meshcni-node", "8"}, // relocated
		{"01adf000-01b73000 rw-p 016dd000 fe:00 12 /opt/meshcni-node", "0"},
		{"01b73000-03b94000 rw-p 00000000 00:00 0", "140"},
		{"7fcd10790000-7fcd10c00000 r--s 00000000 00:05 7 /dev/shm/x", "0"},
		{"7ffd57409000-7ffd5747d000 r-xp 00000000 00:00 0 [vdso]", "0"},
	} {
		text.WriteString(m.head + "\nSize:               11632 kB\nAnonymous:             " + m.anonymous + " kB\nVmFlags: rd ex mr mw me \n")
	}
	all, err := readOnly(strings.NewReader(text.String()))
	require.NoError(t, err)
	assert.Equal(t, []mapping{{0x400000, 0xf5c000}, {0xf5c000, 0x1add000}}, all)
	_, err = readOnly(strings.NewReader("00400000-xyz r-xp 00000000 fe:00 12 /opt/meshcni-node\n"))
	assert.ErrorContains(t, err, "00400000-xyz")
}

// TestGiveBack: the process has fewer pages of its program after it, and goes on.
func TestGiveBack(t *testing.T) {
	mapped := func() int {
		text, err := os.ReadFile("/proc/self/status")
		require.NoError(t, err)
		kib, err := strconv.Atoi(regexp.MustCompile(`RssFile:\s*(\d+) kB`).FindStringSubmatch(string(text))[1])
		require.NoError(t, err)
		return kib
	}
	before := mapped()
	require.NoError(t, GiveBack())
	assert.Less(t, mapped(), before)
}
