package cnicache_test

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/containernetworking/cni/libcni"
	"github.com/meshcni/meshcni/internal/node/inventory/cnicache"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// script is a plugin that gives an address.
const script = `#!/bin/sh
case "$CNI_COMMAND" in
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"veth1"},{"name":"eth0","sandbox":"/var/run/netns/cni-1"}],"ips":[{"address":"10.88.0.5/24","interface":1},{"address":"fd00::5/64","interface":1}]}' ;;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}' ;;
esac
`

// TestWhatLibcniLeaves reads the cache that the real library writes.
func TestWhatLibcniLeaves(t *testing.T) {
	bin, dir := t.TempDir(), t.TempDir()
	for _, name := range []string{"first", "second"} {
		require.NoError(t, os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755))
	}
	conf, err := libcni.NetworkConfFromBytes([]byte(`{"cniVersion":"1.0.0","name":"k8s","plugins":[{"type":"second","delegate":{"type":"third","other":{"type":"no plugin"}}},{"type":"first"}]}`))
	require.NoError(t, err)
	_, err = libcni.NewCNIConfigWithCacheDir([]string{bin}, dir, nil).AddNetworkList(t.Context(), conf, &libcni.RuntimeConf{
		ContainerID: "c0ffee", NetNS: "/var/run/netns/cni-1", IfName: "eth0",
		Args: [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "shop"}, {"K8S_POD_NAME", "cart"}, {"K8S_POD_UID", "u"}},
	})
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(dir, cnicache.Dirs[0], "*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	a, err := cnicache.Read(os.DirFS(dir), cnicache.Dirs[0]+"/"+filepath.Base(files[0]))
	require.NoError(t, err)
	assert.Equal(t, []string{"k8s", "c0ffee", "eth0", "/var/run/netns/cni-1"}, []string{a.NetworkName, a.ContainerID, a.IfName, a.Sandbox()})
	assert.Equal(t, []string{"shop", "cart", "u", ""}, []string{a.Arg("K8S_POD_NAMESPACE"), a.Arg("K8S_POD_NAME"), a.Arg("K8S_POD_UID"), a.Arg("K8S_POD")})
	assert.Equal(t, []string{"first", "second", "third"}, a.Types())
	assert.Equal(t, []netip.Addr{netip.MustParseAddr("10.88.0.5"), netip.MustParseAddr("fd00::5")}, a.Addrs())
}

// TestWhatIsNoAttachment is empty, and no error; what cannot be read is one.
func TestWhatIsNoAttachment(t *testing.T) {
	odd, err := json.Marshal(map[string]any{"containerId": "c", "networkName": 3, "config": []byte(`[{"Type":"a"},3]`), "result": map[string]any{"ips": "none"}})
	require.NoError(t, err)
	cache := fstest.MapFS{"results/half": {Data: []byte(`{"containerId":"c`)}, "results/dir/x": {}, "results/odd": {Data: odd}, "results/pipe": {Mode: os.ModeNamedPipe}}
	for _, name := range []string{"half", "dir", "absent"} {
		a, err := cnicache.Read(cache, "results/"+name)
		require.NoError(t, err, name)
		assert.Empty(t, a.ContainerID, name)
		assert.Empty(t, a.Types(), name)
		assert.Empty(t, a.Sandbox(), name)
	}
	a, err := cnicache.Read(cache, "results/odd")
	require.NoError(t, err)
	assert.Equal(t, "c", a.ContainerID)
	assert.Equal(t, []string{"a"}, a.Types())
	assert.Empty(t, a.Addrs())
	_, err = cnicache.Read(cache, "results/pipe")
	require.ErrorContains(t, err, "not a regular file")
}
