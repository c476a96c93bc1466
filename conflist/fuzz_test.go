package conflist_test

import (
	"testing"

	"github.com/containernetworking/cni/libcni"
	"github.com/meshcni/meshcni/conflist"
	"github.com/stretchr/testify/require"
)

func FuzzInsertRemove(f *testing.F) {
	for _, data := range nodeFiles(f) {
		f.Add(data, []byte(entry))
	}
	f.Add([]byte(list), []byte(`{"type":"a"}`))
	f.Add([]byte(`{"name":"n","plugins":[{"type":"a","Type":"b"},{"TYPE":"c"}]}`), []byte(`{"type":"b","Type":"a"}`))
	f.Add([]byte("{\"name\":\"n\",\"plugins\":[{\"type\"\n:\n\"a\"\n,\"x\":[\"\\\\\",{}]}]}"), []byte("{\"type\"\n:\"\\\"\"}"))
	f.Fuzz(func(t *testing.T, data, entry []byte) {
		list, err := conflist.ToList(data)
		if err != nil {
			require.ErrorIs(t, err, conflist.ErrInvalid)
			return
		}
		with, err := conflist.Insert(list, entry)
		if err != nil {
			return
		}
		_, err = libcni.ConfListFromBytes(with)
		require.NoError(t, err, "libcni refuses %q", with)
		own, err := libcni.ConfListFromBytes(append(append([]byte(`{"name":"n","plugins":[`), entry...), "]}"...))
		require.NoError(t, err)
		ownType := own.Plugins[0].Network.Type
		parsed, err := conflist.Parse(with)
		require.NoError(t, err)
		was, err := conflist.Parse(list)
		require.NoError(t, err)
		require.Equal(t, was.Network(), parsed.Network())
		require.Equal(t, was.CNIVersion(), parsed.CNIVersion())
		require.True(t, parsed.Has(ownType))

		again, err := conflist.Insert(with, entry)
		require.NoError(t, err)
		require.Equal(t, string(with), string(again), "Insert twice is Insert once")

		back, err := conflist.Remove(with, ownType)
		if was.Has(ownType) {
			if err != nil {
				require.ErrorIs(t, err, conflist.ErrLastPlugin)
			}
			return
		}
		require.NoError(t, err)
		require.Equal(t, string(list), string(back), "Insert then Remove is the identity")
	})
}

func FuzzParse(f *testing.F) {
	for _, data := range nodeFiles(f) {
		f.Add(data)
	}
	for _, s := range []string{
		"", "null", "{}", "[", `{"name":1}`, `{"name":"n","plugins":{}}`, `{"name":"n","cniVersions":["1.x"],"plugins":[{"type":"a"}]}`,
		`{"name":"n","cniVersions":["1.0.0","0.4.0"],"cniVersion":"","plugins":[{"type":"a"}]}`, `{"name":"n","disableCheck":"TRUE","plugins":[{"type":"a"}]}`,
		`{"name":"n","disableGC":null,"plugins":[{"type":"a"}]}`, `{"name":"n","plugins":[{"type":"a","capabilities":{"x":1}}]}`, `{"type":"a","ipam":[]}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		agree(t, "x.conflist", data)
		agree(t, "x.conf", data)
	})
}
