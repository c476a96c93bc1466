package conflist_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/meshcni/meshcni/conflist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	list   = `{"name":"n","cniVersion":"1.0.0","plugins":[{"type":"a"}]}`
	single = `{"name":"n","type":"a"}`
)

func TestPrimary(t *testing.T) {
	for _, tc := range []struct {
		name   string
		files  map[string]string
		ignore []string
		want   string
		passed map[string]string
	}{
		{"sorted by name, not by extension", map[string]string{"20.conf": single, "10.conflist": list, "15.json": single}, nil, "10.conflist", nil},
		{"hidden files count", map[string]string{".x.conf": single, "10.conflist": list}, nil, ".x.conf", nil},
		{"other names do not", map[string]string{"05.conflist.cilium_bak": list, "00-kubeconfig": "k", "10.conflist": list}, nil, "10.conflist", nil},
		{
			"bad ones are passed over, each with its reason",
			map[string]string{"00.conf": list, "01.conflist": single, "02.conflist": "", "03.json": "{", "10.conflist": list},
			nil, "10.conflist",
			map[string]string{"00.conf": "only a .conflist file", "01.conflist": "neither inline nor in the directory", "02.conflist": "empty", "03.json": "line 1"},
		},
		{"ignored", map[string]string{"00-own.conflist": list, "10.conflist": list}, []string{"00-own.conflist"}, "10.conflist", nil},
		{"plugins in the network's directory", map[string]string{"05.conflist": `{"name":"n","cniVersion":"1.1.0"}`, "n/10.conf": single}, nil, "05.conflist", nil},
		{
			"a bad plugin in the network's directory",
			map[string]string{"05.conflist": list, "n/10.conf": "{}", "10.conflist": `{"name":"o","plugins":[{"type":"a"}]}`},
			nil, "10.conflist",
			map[string]string{"05.conflist": "n/10.conf"},
		},
		{
			"a list that wants none of them",
			map[string]string{"05.conflist": `{"name":"n","loadOnlyInlinedPlugins":true,"plugins":[{"type":"a"}]}`, "n/10.conf": "{}"},
			nil, "05.conflist", nil,
		},
		{"a directory among the plugins", map[string]string{"05.conflist": list, "n/10.conf/x": ""}, nil, "05.conflist", nil},
		{"the network's name is a file's", map[string]string{"05.conflist": list, "n": ""}, nil, "05.conflist", nil},
		{"a directory", map[string]string{"05.conflist/x": "", "06.conf": single}, nil, "06.conf", map[string]string{"05.conflist": "a directory"}},
		{"none", map[string]string{"README": ""}, nil, "", nil},
		{
			"a single configuration without a network name, which is no list",
			map[string]string{"05.conf": `{"type":"a"}`, "10.conflist": list}, nil, "10.conflist", map[string]string{"05.conf": `no "name"`},
		},
		{"a number that libcni cannot hold", map[string]string{"05.conf": `{"name":"n","type":"a","mtu":1e400}`, "10.conflist": list}, nil, "10.conflist", map[string]string{"05.conf": "1e400"}},
		{"none valid", map[string]string{"10.conf": "{}"}, nil, "", map[string]string{"10.conf": `"type"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fsys := fstest.MapFS{}
			for name, data := range tc.files {
				fsys[name] = &fstest.MapFile{Data: []byte(data)}
			}
			got, err := conflist.Primary(fsys, tc.ignore...)
			skipped := got.Skipped
			if tc.want == "" {
				var none *conflist.NoNetworkError
				require.ErrorAs(t, err, &none)
				skipped = none.Skipped
				for name := range tc.passed {
					assert.ErrorContains(t, err, name)
				}
			} else {
				require.NoError(t, err)
				assert.Equal(t, tc.files[got.Name], string(got.File.Bytes()))
			}
			assert.Equal(t, tc.want, got.Name)
			require.Len(t, skipped, len(tc.passed))
			for _, s := range skipped {
				require.Contains(t, tc.passed, s.Name)
				assert.ErrorContains(t, s.Err, tc.passed[s.Name])
			}
		})
	}
}

func TestPrimaryWithoutDirectory(t *testing.T) {
	_, err := conflist.Primary(os.DirFS(filepath.Join(t.TempDir(), "gone")))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// Every file of the corpus, and each cut short at every byte, is judged as libcni judges it.
func TestParseFileAgreesWithLibcni(t *testing.T) {
	for name, data := range nodeFiles(t) {
		for n := range len(data) + 1 {
			agree(t, name, data[:n])
		}
	}
}

func agree(t testing.TB, name string, data []byte) {
	t.Helper()
	f, err := conflist.ParseFile(name, data)
	if filepath.Ext(name) == ".conflist" {
		want, wantErr := libcni.ConfListFromBytes(data)
		require.Equal(t, wantErr == nil, err == nil, "%s: we: %v; libcni: %v; %q", name, err, wantErr, data)
		if err == nil {
			require.Equal(t, want.Name, f.Network())
			if want.CNIVersion != f.CNIVersion() { // libcni's order of "" and "0.1", two spellings of one version, is undefined
				ge, _ := version.GreaterThanOrEqualTo(want.CNIVersion, f.CNIVersion())
				le, _ := version.GreaterThanOrEqualTo(f.CNIVersion(), want.CNIVersion)
				require.True(t, ge && le, "%q is not %q", f.CNIVersion(), want.CNIVersion)
			}
			require.Len(t, f.Plugins(), len(want.Plugins))
			for i, p := range want.Plugins {
				require.Equal(t, p.Network.Type, f.Plugins()[i].Type)
			}
		}
		return
	}
	want, wantErr := libcni.NetworkPluginConfFromBytes(data)
	require.Equal(t, wantErr == nil, err == nil, "%s: we: %v; libcni: %v; %q", name, err, wantErr, data)
	if err == nil {
		require.Equal(t, want.Network.Type, f.Plugins()[0].Type)
		require.Equal(t, want.Network.Name, f.Network())
	}
}

func TestListName(t *testing.T) {
	for name, want := range map[string]string{"10-a.conf": "10-a.conflist", "10-a.json": "10-a.conflist", "10-a.conflist": "10-a.conflist", "10.a": "10.conflist"} {
		assert.Equal(t, want, conflist.ListName(name))
	}
}
