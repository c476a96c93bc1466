package conflist_test

import (
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/conflist"
)

// chained is a list in which another mesh's plugin stands before ours.
const chained = `{
  "cniVersion": "1.0.0",
  "name": "net",
  "plugins": [
    {
      "type": "bridge",
      "mtu": 9007199254740993
    },
    {
      "type": "istio-cni",
      "log_level": "info"
    },
    {
      "type": "meshcni"
    }
  ]
}
`

func remove(t *testing.T, list, pluginType string) string {
	t.Helper()
	out, err := conflist.Remove([]byte(list), pluginType)
	require.NoError(t, err)
	return string(out)
}

func types(t *testing.T, list []byte) (all []string) {
	t.Helper()
	f, err := conflist.Parse(list)
	require.NoError(t, err)
	for _, p := range f.Plugins() {
		all = append(all, p.Type)
	}
	return all
}

// TestRestore: a list comes back to the byte if nobody has changed it, and else the plugin to its place, with all other bytes kept.
func TestRestore(t *testing.T) {
	rest := remove(t, chained, "istio-cni")
	back, err := conflist.Restore([]byte(rest), []byte(chained), "istio-cni")
	require.NoError(t, err)
	assert.Equal(t, chained, string(back))

	odd := "{\"name\":\"net\",\"plugins\":[ {\"type\":\"bridge\"},\r\n\t{ \"type\" :\"istio-cni\" , \"x\":[1,2 ]  }  ,{\"type\":\"meshcni\"}]}"
	back, err = conflist.Restore([]byte(remove(t, odd, "istio-cni")), []byte(odd), "istio-cni")
	require.NoError(t, err)
	assert.Equal(t, odd, string(back), "an entry that is not written as its neighbours")

	list := func(plugins string) string { return `{"name":"net","cniVersion":"0.4.0", "plugins":[` + plugins + `]}` }
	for name, tc := range map[string]struct{ now, want string }{
		"behind the one before it":          {`{"type":"portmap"}, {"type":"bridge"}, {"type":"meshcni"}`, `{"type":"portmap"}, {"type":"bridge"}, {"type":"istio-cni","log_level":"info"}, {"type":"meshcni"}`},
		"before the one behind it":          {`{"type":"ptp"}, {"type":"meshcni"}`, `{"type":"ptp"}, {"type":"istio-cni","log_level":"info"}, {"type":"meshcni"}`},
		"before the first":                  {`{"type":"meshcni"}, {"type":"ptp"}`, `{"type":"istio-cni","log_level":"info"}, {"type":"meshcni"}, {"type":"ptp"}`},
		"last, when ours is gone":           {`{"type":"bridge"}`, `{"type":"bridge"},{"type":"istio-cni","log_level":"info"}`},
		"its installer has written another": {`{"type":"bridge"}, {"type":"istio-cni","x":1}`, `{"type":"bridge"}, {"type":"istio-cni","x":1}`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := conflist.Restore([]byte(list(tc.now)), []byte(chained), "istio-cni")
			require.NoError(t, err)
			assert.Equal(t, list(tc.want), string(got))
		})
	}

	twice := `{"name":"n","plugins":[{"type":"a"},{"type":"x","n":1},{"type":"b"},{"type":"x","n":2}]}`
	back, err = conflist.Restore([]byte(remove(t, twice, "x")), []byte(twice), "x")
	require.NoError(t, err)
	assert.Equal(t, twice, string(back))
	back, err = conflist.Restore([]byte(`{"name":"n","plugins":[{"type":"a"},{"type":"b"},{"type":"c"}]}`), []byte(twice), "x")
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "x", "b", "x", "c"}, types(t, back))

	for name, tc := range map[string]struct {
		now, was string
		want     error
	}{
		"another network":    {`{"name":"other","plugins":[{"type":"bridge"}]}`, chained, conflist.ErrOtherNetwork},
		"no neighbour":       {list(`{"type":"ptp"}`), chained, conflist.ErrNoPlace},
		"broken now":         {`{`, chained, conflist.ErrInvalid},
		"a single plugin":    {`{"name":"net","type":"bridge"}`, chained, conflist.ErrSingle},
		"broken then":        {rest, `{"name":`, conflist.ErrInvalid},
		"it was alone":       {rest, `{"name":"net","plugins":[{"type":"istio-cni"}]}`, conflist.ErrLastPlugin},
		"in a directory now": {`{"name":"net"}`, chained, conflist.ErrNoInlinePlugins},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := conflist.Restore([]byte(tc.now), []byte(tc.was), "istio-cni")
			require.ErrorIs(t, err, tc.want)
		})
	}
}

func FuzzRestore(f *testing.F) {
	f.Add([]byte(chained), []byte(chained), "istio-cni")
	for _, data := range nodeFiles(f) {
		f.Add(data, []byte(chained), "bridge")
		f.Add([]byte(chained), data, "portmap")
	}
	f.Fuzz(func(t *testing.T, was, now []byte, pluginType string) {
		rest, err := conflist.Remove(was, pluginType)
		if err != nil {
			return
		}
		if parsed, err := conflist.Parse(was); err == nil && parsed.IsList() && len(parsed.Plugins()) > 0 {
			back, err := conflist.Restore(rest, was, pluginType)
			require.NoError(t, err)
			require.Equal(t, string(was), string(back), "Restore after Remove is the identity")
		}
		back, err := conflist.Restore(now, was, pluginType)
		if err != nil || string(now) == string(rest) {
			return
		}
		_, err = libcni.ConfListFromBytes(back)
		require.NoError(t, err, "libcni refuses %q", back)
		there, err := conflist.Parse(now)
		require.NoError(t, err)
		if there.Has(pluginType) {
			require.Equal(t, string(now), string(back))
			return
		}
		again, err := conflist.Remove(back, pluginType)
		require.NoError(t, err)
		require.Equal(t, string(now), string(again), "nothing else is changed")
	})
}
