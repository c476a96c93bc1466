package attachment_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

var eth0 = attachment.ID{Network: "k8s", ContainerID: "c0ffee", IfName: "eth0"}

func record(t testing.TB, r redirect.Redirect) attachment.Record {
	t.Helper()
	rules, err := r.Ruleset()
	require.NoError(t, err)
	rec := attachment.Record{
		ID: eth0, NetNS: attachment.NetNS{Path: "/var/run/netns/a", Dev: 4, Ino: 4026532000},
		Pod:      status.ID{Namespace: "shop", Name: "cart-0", UID: "u1"},
		Selected: true, Reason: "selected", Dialect: "istio", By: "ADD", Time: time.Unix(1700000000, 0).UTC(),
	}
	rec.Applied("nftables", rules, nil)
	return rec
}

func TestFiles(t *testing.T) {
	t.Parallel()
	run := filepath.Join(t.TempDir(), "run", "meshcni")
	store := attachment.Open(run)
	_, err := store.Read(eth0)
	require.ErrorIs(t, err, fs.ErrNotExist)
	require.NoError(t, store.Remove(eth0), "nothing there")
	require.NoError(t, store.Retain("k8s", nil, time.Time{}), "nothing there")
	require.NoError(t, store.Write(record(t, redirect.Default())))

	st, err := os.Stat(filepath.Join(run, "attachments"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o700), st.Mode().Perm())
	assert.Equal(t, []string{"k8s@c0ffee@eth0.json"}, ls(t, store))
	st, err = os.Stat(filepath.Join(store.Dir, "k8s@c0ffee@eth0.json"))
	require.NoError(t, err)
	assert.Equal(t, fs.FileMode(0o600), st.Mode().Perm())

	passed := attachment.Record{ID: eth0, Reason: "not-injected", By: "ADD"}
	require.NoError(t, store.Write(passed), "in place of the other")
	got, err := store.Read(eth0)
	require.NoError(t, err)
	assert.False(t, got.Selected)
	assert.Equal(t, ruleset.Ruleset{}, got.Rules)
	require.NoError(t, store.Remove(eth0))
	assert.Empty(t, ls(t, store))

	none := attachment.Store{}
	require.NoError(t, none.Write(passed))
	require.NoError(t, none.Remove(eth0))
	_, err = none.Read(eth0)
	assert.ErrorIs(t, err, fs.ErrNotExist)
}

func ls(t testing.TB, s attachment.Store) (names []string) {
	entries, err := os.ReadDir(s.Dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// TestNamesStayInTheDirectory: what the runtime says is never a path, and two attachments never share a file.
func TestNamesStayInTheDirectory(t *testing.T) {
	t.Parallel()
	outside := t.TempDir()
	store := attachment.Open(filepath.Join(outside, "run"))
	for _, bad := range []attachment.ID{
		{}, {"k8s", "c", ""}, {"", "c", "eth0"}, {"k8s", "", "eth0"}, {"k8s", "../../x", "eth0"}, {"k8s", "a/b", "eth0"}, {"../k8s", "c", "eth0"},
		{"k8s", "c", "../../../x"}, {"k8s", "c", "a\x00b"}, {"k8s", ".c", "eth0"}, {"k8s", "c@d", "eth0"}, {"k8s", "c", strings.Repeat("e", 16)},
	} {
		r := attachment.Record{ID: bad, Reason: "x"}
		assert.Error(t, store.Write(r), "%q", bad)
		assert.Error(t, store.Remove(bad), "%q", bad)
		_, err := store.Read(bad)
		assert.Error(t, err, "%q", bad)
		assert.NotErrorIs(t, err, fs.ErrNotExist)
	}
	entries, err := os.ReadDir(outside)
	require.NoError(t, err)
	assert.Empty(t, entries)

	long := strings.Repeat("a", 5000)
	all := []attachment.ID{
		{"k8s", "a-b", "c"}, {"k8s", "a", "b-c"}, {"k8s", "a.b", "c"}, {"k8s", "a", "b@c"}, {"k8s-a", "b", "c"}, {"k8s", "a-b", "c.json"}, {"k8s", "a", ".."},
		{long, long, "c"}, {long + "b", long, "c"}, {long, long + "b", "c"}, {long, long, "123456789012345"},
	}
	for _, id := range all {
		require.NoError(t, store.Write(attachment.Record{ID: id, Reason: status.Code(id.String())}))
	}
	assert.Len(t, ls(t, store), len(all))
	for _, id := range all {
		r, err := store.Read(id)
		require.NoError(t, err)
		assert.EqualValues(t, id.String(), r.Reason)
	}
	require.NoError(t, store.Retain(long, []attachment.ID{{"of another network", long, "c"}}, time.Time{}), "the network is the one asked for")
	assert.Len(t, ls(t, store), len(all)-2)
	for _, id := range all {
		require.NoError(t, store.Remove(id))
	}
	assert.Empty(t, ls(t, store))
}

// TestUnreadable: what is there and is no record of this attachment is an error, and another one than "not there".
func TestUnreadable(t *testing.T) {
	t.Parallel()
	store := attachment.Open(t.TempDir())
	good := record(t, redirect.Default())
	require.NoError(t, store.Write(good))
	path := filepath.Join(store.Dir, ls(t, store)[0])
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	for name, bad := range map[string]string{
		"empty":             "",
		"cut":               string(text[:len(text)/2]),
		"no JSON":           "\x00\x01",
		"a list":            "[]",
		"another format":    strings.Replace(string(text), `"version":1`, `"version":2`, 1),
		"no format":         strings.Replace(string(text), `"version":1,`, ``, 1),
		"another container": strings.Replace(string(text), "c0ffee", "c0ffef", 1),
		"another family":    strings.Replace(string(text), `"family":"ipv4"`, `"family":"ipv6"`, 1),
		"a foreign rule":    strings.Replace(string(text), `-p tcp`, `-m string --string x`, 1),
		"no owner":          strings.ReplaceAll(string(text), `"prefix":"MESH_"`, `"prefix":""`),
		"no backend":        strings.Replace(string(text), `"backend":"nftables",`, ``, 1),
		"too large":         string(text) + strings.Repeat(" ", 4194304),
	} {
		require.NotEqual(t, string(text), bad, name)
		require.NoError(t, os.WriteFile(path, []byte(bad), 0o600))
		_, err := store.Read(eth0)
		require.Error(t, err, name)
		assert.NotErrorIs(t, err, fs.ErrNotExist, name)
		bads := 0
		for _, err := range store.All() {
			if err != nil {
				bads++
			}
		}
		assert.Equal(t, name != "another container", bads == 1, name)
	}
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Mkdir(path, 0o700))
	_, err = store.Read(eth0)
	require.Error(t, err)
	assert.NotErrorIs(t, err, fs.ErrNotExist)
}

// TestNoRecordIsBetterThanAnOldOne: what could not be written must not leave what is no longer so.
func TestNoRecordIsBetterThanAnOldOne(t *testing.T) {
	t.Parallel()
	store := attachment.Open(t.TempDir())
	require.NoError(t, store.Write(record(t, redirect.Default())))
	huge := record(t, redirect.Default())
	for len(huge.Rules.IPv4.Chains[0].Rules) < 200000 {
		c := &huge.Rules.IPv4.Chains[0]
		c.Rules = append(c.Rules, c.Rules[0])
	}
	assert.ErrorContains(t, store.Write(huge), "of at most 4194304")
	_, err := store.Read(eth0)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.Empty(t, ls(t, store), "nothing half written is left")

	// The directory cannot be made.
	run := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(run, "attachments"), nil, 0o600))
	blocked := attachment.Open(run)
	assert.Error(t, blocked.Write(record(t, redirect.Default())))
	assert.Error(t, blocked.Retain("k8s", nil, time.Time{}))
	_, err = blocked.Read(eth0)
	assert.Error(t, err)
	assert.False(t, errors.Is(err, fs.ErrNotExist), "not to be read is not to be absent")
}

// TestAnErrorIsRepeated: what fails again fails with the same words, else each attempt would be logged anew. The temporary file's
// name is random.
func TestAnErrorIsRepeated(t *testing.T) {
	t.Parallel()
	store := attachment.Open(t.TempDir())
	require.NoError(t, store.Write(record(t, redirect.Default())))
	path := filepath.Join(store.Dir, ls(t, store)[0])
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.MkdirAll(filepath.Join(path, "not-empty"), 0o700)) // the record cannot take its place
	first, again := store.Write(record(t, redirect.Default())), store.Write(record(t, redirect.Default()))
	require.ErrorContains(t, first, "record the attachment: write "+path+": ")
	require.EqualError(t, again, first.Error())
	assert.Len(t, ls(t, store), 1, "no temporary file stays")
}

func TestRetain(t *testing.T) {
	t.Parallel()
	store := attachment.Open(t.TempDir())
	for _, id := range []attachment.ID{{"k8s", "a", "eth0"}, {"k8s", "a", "net1"}, {"k8s", "b", "eth0"}, {"k8", "b", "eth0"}, {"k8s-2", "b", "eth0"}} {
		require.NoError(t, store.Write(attachment.Record{ID: id}))
	}
	young, old := filepath.Join(store.Dir, ".1"), filepath.Join(store.Dir, ".2")
	for _, f := range []string{young, old} {
		require.NoError(t, os.WriteFile(f, nil, 0o600))
	}
	past := time.Now().Add(-time.Hour)
	require.NoError(t, os.Chtimes(old, past, past))
	require.NoError(t, store.Retain("k8s", []attachment.ID{{"", "a", "eth0"}, {"", "never/seen", "eth0"}}, time.Time{}))
	assert.Equal(t, []string{".1", "k8@b@eth0.json", "k8s-2@b@eth0.json", "k8s@a@eth0.json"}, ls(t, store))
	require.NoError(t, store.Retain("k8s", nil, past))
	assert.Contains(t, ls(t, store), "k8s@a@eth0.json", "it was written since")
	require.NoError(t, store.Retain("k8s", nil, time.Now().Add(time.Hour)))
	assert.NotContains(t, ls(t, store), "k8s@a@eth0.json")
}

func TestIs(t *testing.T) {
	t.Parallel()
	ns := attachment.NetNS{Path: "/x", Dev: 4, Ino: 7}
	assert.True(t, ns.Is(netnsexec.ID{Dev: 4, Ino: 7}))
	assert.False(t, ns.Is(netnsexec.ID{Dev: 4, Ino: 8}))
	assert.False(t, ns.Is(netnsexec.ID{Dev: 5, Ino: 7}))
	assert.False(t, attachment.NetNS{Path: "/x"}.Is(netnsexec.ID{}), "not known")
}
