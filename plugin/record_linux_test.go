//go:build linux

package plugin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/meshcni/meshcni/internal/node/attachment"
	"github.com/meshcni/meshcni/internal/testing/binarytest"
	"github.com/meshcni/meshcni/netnsexec"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/status"
)

// TestSecondNetwork: two attachments of one pod set the rules of one namespace. CHECK of the first does not call what the
// second has made of them a loss.
func TestSecondNetwork(t *testing.T) {
	n := newNode(t, "nftables")
	ns := netnstest.New(t)
	first := n.attach(caseOf(t, "fam-dual"), ns)
	add(t, first)
	second := n.attach(caseOf(t, "fam-dual"), ns)
	second.IfName = "net1"
	second.Config = set(second.Config.(object), "name", "second", "prevResult", object{
		"cniVersion": "1.1.0", "ips": []object{{"address": "192.0.2.5/24"}},
	})
	n.server.SetPod(caseOf(t, "out-exclude-ports")) // the same pod, with other annotations by now
	add(t, second)
	passes(t, first, "checked")
	passes(t, second, "checked")
	in(t, ns, "nft flush ruleset")
	differs(t, first)
	differs(t, second)
}

// TestRecordsComeAndGo: ADD leaves one, DEL and GC take it away, and nothing that happens to them fails a pod.
func TestRecordsComeAndGo(t *testing.T) {
	n := newNode(t, "nftables")
	dir := filepath.Join(n.runDir, "attachments")
	records := func() []string {
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		var names []string
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	a := n.attach(caseOf(t, "fam-dual"), netnstest.New(t))
	outside := caseOf(t, "sel-no-status")
	outside.Name = "outside"
	passed := n.attach(outside, netnstest.New(t))
	passed.ContainerID = "passed"
	nobody := n.attach(caseOf(t, "fam-dual"), netnstest.New(t))
	nobody.ContainerID, nobody.Pod = "nobody", ""
	excluded := n.attach(caseOf(t, "fam-dual"), netnstest.New(t))
	excluded.ContainerID, excluded.Namespace = "excluded", "kube-system"
	for _, a := range []binarytest.Attachment{a, passed, nobody, excluded} {
		add(t, a)
	}
	assert.Equal(t, []string{"k8s@excluded@eth0.json", "k8s@nobody@eth0.json", "k8s@passed@eth0.json", "k8s@plugintest@eth0.json"}, records())
	store := attachment.Open(n.runDir)
	reasons := map[string]string{}
	for r, err := range store.All() {
		require.NoError(t, err)
		assert.Equal(t, r.ContainerID == "plugintest", r.Selected)
		assert.NotZero(t, r.NetNS.Ino)
		assert.Equal(t, r.ContainerID == "nobody", r.Pod == status.ID{})
		reasons[r.ContainerID] = string(r.Reason)
	}
	assert.Equal(t, map[string]string{"plugintest": "selected", "passed": "not-injected", "nobody": "not-kubernetes", "excluded": "excluded-namespace"}, reasons)
	for _, a := range []binarytest.Attachment{passed, nobody, excluded} {
		passes(t, a, "passed", "passed over")
		_, _, d := checks(t, a)
		assert.Equal(t, reasons[a.ContainerID], d["reason"])
	}

	gc := func(key string, valid any) {
		c := a
		c.NetNS = ""
		c.Config = object{"cniVersion": "1.1.0", "name": "k8s", "type": "meshcni", "run_dir": n.runDir, key: valid}
		out := c.Run(t, "GC")
		require.Zero(t, out.Exit, string(out.Stdout))
	}
	const key = "cni.dev/valid-attachments"
	one := func(container, ifName string) object { return object{"containerID": container, "ifname": ifName} }
	for _, unsaid := range []any{nil, "all of them", []any{"a"}, []object{{"ifname": "eth0"}}, 7} {
		gc(key, unsaid)
	}
	gc("cni.dev/other", []object{})
	assert.Len(t, records(), 4, "nobody said which are valid")
	gc(key, []object{one("plugintest", "eth0"), one("passed", "eth0"), one("excluded", "net1")})
	assert.Equal(t, []string{"k8s@passed@eth0.json", "k8s@plugintest@eth0.json"}, records())
	gc("cni.dev/attachments", []object{one("plugintest", "eth0")})
	assert.Equal(t, []string{"k8s@plugintest@eth0.json"}, records())

	other := a
	other.Config = set(a.Config.(object), "name", "another")
	add(t, other)
	gc(key, []object{})
	assert.Equal(t, []string{"another@plugintest@eth0.json"}, records(), "another network's is not ours to judge")

	other.NetNS = "" // as containerd calls it the second time
	for range 2 {
		assert.Zero(t, other.Run(t, "DEL").Exit)
		assert.Empty(t, records())
	}
	require.NoError(t, os.RemoveAll(n.runDir))
	out := other.Run(t, "DEL")
	assert.Zero(t, out.Exit)
	assert.Empty(t, out.Stdout)
	require.NoDirExists(t, dir)
}

// TestRunDirThatIsFull: an ADD does not depend on its record, and CHECK then does not know.
func TestRunDirThatIsFull(t *testing.T) {
	n := newNode(t, "nftables")
	require.NoError(t, unix.Mount("tmpfs", n.runDir, "tmpfs", 0, "size=64k"))
	t.Cleanup(func() { _ = unix.Unmount(n.runDir, unix.MNT_DETACH) })
	a := n.attach(caseOf(t, "fam-dual"), netnstest.New(t))
	add(t, a)
	passes(t, a, "checked")
	full, err := os.Create(filepath.Join(n.runDir, "full"))
	require.NoError(t, err)
	for err == nil {
		_, err = full.Write(make([]byte, 512))
	}
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, full.Close())
	in(t, openNS(t, a.NetNS), "nft flush ruleset")
	out := a.Run(t, "ADD")
	require.Zero(t, out.Exit, string(out.Stdout))
	assert.Contains(t, string(out.Stderr), "record the attachment")
	passes(t, a, "unknown", "no record")
	entries, err := os.ReadDir(filepath.Join(n.runDir, "attachments"))
	require.NoError(t, err)
	assert.Empty(t, entries, "nothing half written")

	require.NoError(t, unix.Mount("", n.runDir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	add(t, a)
	passes(t, a, "unknown", "no record")
	assert.Zero(t, a.Run(t, "DEL").Exit)
}

func openNS(t testing.TB, path string) *netnsexec.NetNS {
	ns, err := netnsexec.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	return ns
}

// TestCheckUnderTheRuntimeLibrary is CHECK, GC and DEL as CRI-O calls them, through libcni.
func TestCheckUnderTheRuntimeLibrary(t *testing.T) {
	n := newNode(t, "auto")
	bin := t.TempDir()
	require.NoError(t, os.Symlink(n.binary, filepath.Join(bin, "meshcni")))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "first"), []byte(firstPlugin), 0o755))
	list, err := json.Marshal(object{
		"cniVersion": "1.1.0", "name": "pod-network",
		"plugins": []object{{"type": "first"}, {"type": "meshcni", "run_dir": n.runDir, "kubernetes": object{"kubeconfig": n.kubeconfig}}},
	})
	require.NoError(t, err)
	conf, err := libcni.NetworkConfFromBytes(list)
	require.NoError(t, err)
	cni := libcni.NewCNIConfigWithCacheDir([]string{bin}, t.TempDir(), &invoke.DefaultExec{RawExec: &invoke.RawExec{Stderr: &bytes.Buffer{}}})
	ns := netnstest.New(t)
	pod := meshPod()
	n.server.SetPod(pod)
	rt := &libcni.RuntimeConf{ContainerID: "sandbox", NetNS: ns.Path(), IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", pod.Namespace}, {"K8S_POD_NAME", pod.Name}, {"K8S_POD_UID", string(pod.UID)},
	}}
	check := func() error { return cni.CheckNetworkList(context.WithoutCancel(t.Context()), conf, rt) }
	_, err = cni.AddNetworkList(t.Context(), conf, rt)
	require.NoError(t, err)
	require.NoError(t, check())
	requests := len(n.server.Requests())
	n.server.Close()
	require.NoError(t, check())
	require.NoError(t, cni.GCNetworkList(t.Context(), conf, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{{ContainerID: "sandbox", IfName: "eth0"}}}))
	in(t, ns, "iptables-nft -t nat -F ISTIO_OUTPUT")
	err = check()
	var failed *types.Error
	require.ErrorAs(t, err, &failed)
	assert.EqualValues(t, 100, failed.Code)
	require.NoError(t, cni.GCNetworkList(t.Context(), conf, &libcni.GCArgs{ValidAttachments: []types.GCAttachment{}}))
	_, err = attachment.Open(n.runDir).Read(attachment.ID{Network: "pod-network", ContainerID: "sandbox", IfName: "eth0"})
	require.ErrorIs(t, err, os.ErrNotExist)
	assert.Len(t, n.server.Requests(), requests)
}
