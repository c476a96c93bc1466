package inventory

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/node/inventory/cnicache"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/status"
)

var cart = status.ID{Namespace: "shop", Name: "cart", UID: "u"}

// aNode is an inventory, and the directories of which it is.
func aNode(t *testing.T, runtime func() []Row) (i *Inventory, records attachment.Store, cache string) {
	t.Helper()
	records, cache = attachment.Open(t.TempDir()), t.TempDir()
	return New(Options{Records: records, CacheDir: cache, Runtime: runtime}), records, cache
}

// leave writes a file of the cache as libcni does.
func leave(t *testing.T, cache, dir, network, container, ifName, address string, age time.Duration) {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Join(cache, dir), 0o755))
	file := filepath.Join(cache, dir, network+"-"+container+"-"+ifName)
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, `{"kind":"cniCacheV1","containerId":%q,"networkName":%q,"ifName":%q,"netns":"/run/netns/%s","config":"eyJ0eXBlIjoicHRwIn0=",
		"cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","cart"],["K8S_POD_UID","u"]],"result":{"ips":[{"address":"%s/24"}]}}`, container, network, ifName, container, address), 0o600))
	made := time.Now().Add(-age)
	require.NoError(t, os.Chtimes(file, made, made))
}

func record(t *testing.T, store attachment.Store, container, uid string) {
	t.Helper()
	rules, err := redirect.Default().Ruleset()
	require.NoError(t, err)
	r := attachment.Record{
		ID: attachment.ID{Network: "k8s", ContainerID: container, IfName: "eth0"}, NetNS: attachment.NetNS{Path: "/run/netns/" + container, Dev: 4, Ino: 7},
		Pod: status.ID{Namespace: "shop", Name: "cart", UID: uid}, Selected: true, Reason: "selected", Dialect: "istio", By: "ADD", Time: time.Unix(1700000000, 0).UTC(),
	}
	r.Applied("nftables", rules, nil)
	require.NoError(t, store.Write(r))
}

// TestRows: each source's word, the runtime's own first, and of one source the latest.
func TestRows(t *testing.T) {
	t.Parallel()
	i, records, cache := aNode(t, func() []Row {
		return []Row{{ID: attachment.ID{ContainerID: "c3"}, Pod: cart, NetNS: attachment.NetNS{Path: "/run/netns/c3"}}}
	})
	now := i.Look()
	assert.Len(t, now.Rows, 1)
	require.NoError(t, now.Err(), "a cache without attachments")
	leave(t, cache, "results", "cni-loopback", "c1", "lo", "127.0.0.1", 0)
	leave(t, cache, "results", "k8s", "c1", "eth0", "10.0.0.1", time.Hour)
	leave(t, cache, "cache/results", "k8s", "c2", "eth0", "10.0.0.2", time.Minute)
	leave(t, cache, "multus/results", "k8s", "c2", "net1", "10.1.0.2", 0)
	record(t, records, "c1", "u")
	now = i.Look()
	require.NoError(t, now.Err())
	var got []string
	for _, r := range now.Rows {
		assert.Equal(t, cart, r.Pod)
		assert.Equal(t, "/run/netns/"+r.ContainerID, r.NetNS.Path)
		assert.Equal(t, r.Source == Record, r.Record != nil)
		got = append(got, string(r.Source)+" "+r.ContainerID)
	}
	assert.Equal(t, []string{"runtime c3", "record c1", "cache c2", "cache c1", "multus c2"}, got)
	assert.Equal(t, ruleset.Ruleset{}, now.Rows[1].Record.Rules, "which would be kept in memory for each pod")
	assert.Equal(t, []string{"ptp"}, now.Rows[2].Types)
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("10.0.0.2")}, now.Rows[2].Addrs)
	whole, err := i.Records(func(r Row) bool { return r.Pod == cart })
	require.NoError(t, err)
	require.Len(t, whole, 1)
	assert.NotEqual(t, ruleset.Ruleset{}, whole[0].Rules)

	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "cart", UID: "u"}, Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}}}}
	assert.Equal(t, "c3", now.Sandbox(pod)[0].ContainerID, "the runtime's word outranks an address")
	assert.Nil(t, now.Record(pod), "that of a sandbox before says nothing")
	assert.Equal(t, "c1", now.Rows[1:].Sandbox(pod)[0].ContainerID)
	assert.Equal(t, "c1", now.Rows[1:].Record(pod).ContainerID)
}

// TestUnread: what cannot be read is said, once for all files of a source, and the others count. A file that is gone is no error.
func TestUnread(t *testing.T) {
	t.Parallel()
	i, records, cache := aNode(t, nil)
	leave(t, cache, "results", "k8s", "c1", "eth0", "10.0.0.1", 0)
	leave(t, cache, "results", "k8s", "c2", "eth0", "10.0.0.1", 0)
	record(t, records, "c1", "u")
	for _, name := range []string{"k8s@c8@eth0.json", "k8s@c9@eth0.json"} {
		require.NoError(t, os.WriteFile(filepath.Join(records.Dir, name), []byte("{"), 0o600))
	}
	require.NoError(t, os.WriteFile(filepath.Join(cache, "results", "k8s-c2-eth0"), make([]byte, cnicache.MaxBytes+1), 0o600))
	now := i.Look()
	assert.Len(t, now.Rows, 2)
	assert.ErrorContains(t, now.Unread[Record], "2 records cannot be read: k8s@c")
	assert.ErrorContains(t, now.Unread[Cache], "1 attachments of the runtime's cache cannot be read: read results/k8s-c2-eth0: it has more than 4194304 bytes")
	require.NoError(t, os.RemoveAll(cache))
	require.NoError(t, os.RemoveAll(records.Dir))
	now = i.Look()
	assert.Empty(t, now.Rows)
	require.NoError(t, now.Unread[Record])
	assert.ErrorIs(t, now.Err(), fs.ErrNotExist, "so pods without an attachment may have one")
}

// TestOneLook: those who ask in the same second share a look, unless what they look for is not there.
func TestOneLook(t *testing.T) {
	t.Parallel()
	i, records, cache := aNode(t, nil)
	leave(t, cache, "results", "k8s", "c1", "eth0", "10.0.0.1", 0)
	record(t, records, "c1", "u")
	is := func(uid string) func(Row) bool { return func(r Row) bool { return r.Pod.UID == uid } }
	i.Look()
	i.at = i.at.Add(time.Hour) // a second that lasts
	for range 4 {
		assert.Len(t, i.Recent(nil).Rows, 2)
		assert.True(t, i.Has(is("u")))
	}
	assert.Equal(t, 1, i.looks)
	record(t, records, "c2", "v")
	assert.True(t, i.Has(is("v")))
	assert.Equal(t, 2, i.looks)
	assert.False(t, i.Has(is("w")))
	assert.Equal(t, 3, i.looks)
	i.at = i.at.Add(-time.Hour)
	i.Recent(nil)
	assert.Equal(t, 4, i.looks, "and later they look again")
}

// TestChange: those who change what is in force find the records that it is about.
func TestChange(t *testing.T) {
	t.Parallel()
	i, records, _ := aNode(t, nil)
	netns := netnsexec.ID{Dev: 4, Ino: 7}
	for _, c := range []string{"a", "b"} {
		record(t, records, c, "pod-"+c)
	}
	require.NoError(t, os.WriteFile(filepath.Join(records.Dir, "k8s@c@eth0.json"), []byte("{"), 0o600))
	other := redirect.Default()
	other.Inbound.ExcludePorts = redirect.Ports(22)
	rules, err := other.Ruleset()
	require.NoError(t, err)
	change := func(r *attachment.Record) bool {
		r.Applied("iptables-nft", rules, []ruleset.Family{ruleset.IPv6})
		return true
	}
	found, unread, err := i.Change("pod-b", netnsexec.ID{Dev: 4, Ino: 8}, "repair", change)
	assert.False(t, found, "of another namespace")
	require.NoError(t, err)
	require.ErrorContains(t, unread, "k8s@c@eth0.json", "it may be one that should have changed")
	found, _, err = i.Change("pod-b", netns, "repair", func(*attachment.Record) bool { return false })
	assert.True(t, found)
	require.NoError(t, err)
	found, _, err = i.Change("pod-b", netns, "repair", change)
	assert.True(t, found)
	require.NoError(t, err)
	for c, changed := range map[string]bool{"a": false, "b": true} {
		r, err := records.Read(attachment.ID{Network: "k8s", ContainerID: c, IfName: "eth0"})
		require.NoError(t, err)
		assert.Equal(t, changed, r.Rules.Equal(rules))
		assert.Equal(t, changed, r.InForce().IPv6 == nil, "the kernel had none")
		assert.Equal(t, changed, r.By == "repair" && time.Since(r.Time) < time.Hour)
	}
}

// TestRecorded: a container's record is found as it is now; one whose writer the store names has that one.
func TestRecorded(t *testing.T) {
	t.Parallel()
	i, records, _ := aNode(t, nil)
	_ = i.Look()
	record(t, records, "c1", "u")
	at := attachment.ID{Network: "k8s", ContainerID: "c1", IfName: "eth0"}
	by := func(writer string) func(attachment.Record) bool {
		return func(r attachment.Record) bool { return r.ID == at && r.By == writer }
	}
	assert.True(t, i.Recorded("c1", by("ADD")))
	assert.False(t, i.Recorded("c", by("ADD")))
	is, err := records.Read(at)
	require.NoError(t, err)
	require.NoError(t, i.As("nri").Write(is))
	assert.True(t, i.Recorded("c1", by("nri")))
	assert.False(t, i.Recorded("c1", by("ADD")))
	require.NoError(t, i.Retain("other", nil, time.Time{}))
	assert.True(t, i.Has(func(r Row) bool { return r.ContainerID == "c1" }))
	require.NoError(t, i.Retain("k8s", nil, time.Time{}))
	assert.Empty(t, i.Look().Rows)
	require.NoError(t, i.Remove(at))
}
