package conflist_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/meshcni/meshcni/conflist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files anew")

const entry = `{
  "type": "meshcni",
  "dialect": "istio",
  "capabilities": {"io.kubernetes.cri.pod-annotations": true},
  "kubernetes": {"kubeconfig": "/var/run/meshcni/kubeconfig", "exclude_namespaces": ["istio-system", "kube-system"]}
}`

func nodeFiles(t testing.TB) map[string][]byte {
	t.Helper()
	paths, err := filepath.Glob("testdata/nodes/*")
	require.NoError(t, err)
	require.Greater(t, len(paths), 20)
	files := map[string][]byte{}
	for _, p := range paths {
		data, err := os.ReadFile(p)
		require.NoError(t, err)
		files[filepath.Base(p)] = data
	}
	return files
}

func TestNodeFiles(t *testing.T) {
	for name, data := range nodeFiles(t) {
		t.Run(name, func(t *testing.T) {
			before := bytes.Clone(data)
			found, err := conflist.ParseFile(name, data)
			require.NoError(t, err)
			assert.Equal(t, strings.HasSuffix(name, ".conflist"), found.IsList())

			list, err := conflist.ToList(data)
			require.NoError(t, err)
			if found.IsList() {
				require.Equal(t, data, list)
			} else {
				_, err := conflist.Insert(data, []byte(entry))
				require.ErrorIs(t, err, conflist.ErrSingle)
				assert.Contains(t, string(list), string(found.Plugins()[0].Raw), "the plugin's object stays verbatim")
			}

			with, err := conflist.Insert(list, []byte(entry))
			require.NoError(t, err)
			checkInserted(t, list, with)

			again, err := conflist.Insert(with, []byte(entry))
			require.NoError(t, err)
			assert.Equal(t, string(with), string(again), "a second Insert changes nothing")

			back, err := conflist.Remove(with, "meshcni")
			require.NoError(t, err)
			assert.Equal(t, string(list), string(back), "Remove gives back the bytes")
			assert.Equal(t, before, data, "the argument was written to")

			golden := filepath.Join("testdata/golden", name)
			if *update {
				require.NoError(t, os.WriteFile(golden, with, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(want), string(with))
		})
	}
}

// checkInserted proves that with is list plus one contiguous run of bytes, and what libcni makes of both.
func checkInserted(t testing.TB, list, with []byte) {
	t.Helper()
	prefix := 0
	for prefix < len(list) && list[prefix] == with[prefix] {
		prefix++
	}
	suffix := 0
	for suffix < len(list)-prefix && list[len(list)-1-suffix] == with[len(with)-1-suffix] {
		suffix++
	}
	require.Equal(t, len(list), prefix+suffix, "more than one place changed")

	was, err := libcni.ConfListFromBytes(list)
	require.NoError(t, err)
	is, err := libcni.ConfListFromBytes(with)
	require.NoError(t, err, "%s", with)
	require.Equal(t, was.Name, is.Name)
	require.Equal(t, was.CNIVersion, is.CNIVersion)
	require.Len(t, is.Plugins, len(was.Plugins)+1)
	for i, p := range was.Plugins {
		require.Equal(t, string(p.Bytes), string(is.Plugins[i].Bytes))
	}
	last := is.Plugins[len(was.Plugins)]
	require.JSONEq(t, entry, string(last.Bytes))
	f, err := conflist.Parse(with)
	require.NoError(t, err)
	require.Equal(t, is.CNIVersion, f.CNIVersion())
	require.Equal(t, is.Name, f.Network())
	require.True(t, json.Valid(f.Plugins()[len(was.Plugins)].Raw))
}
