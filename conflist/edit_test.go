package conflist_test

import (
	"testing"

	"github.com/meshcni/meshcni/conflist"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestInsert(t *testing.T) {
	for _, tc := range []struct{ name, in, entry, want string }{
		{
			"one line", `{"name":"n","plugins":[{"type":"a"}]}`, `{"type": "m", "k": [1, 2], "o": {}}`,
			`{"name":"n","plugins":[{"type":"a"},{"type":"m","k":[1,2],"o":{}}]}`,
		},
		{
			"one line with spaces", `{"name": "n", "plugins": [ { "type": "a" } ]}`, `{"type":"m","k":[1,2]}`,
			`{"name": "n", "plugins": [ { "type": "a" }, { "type": "m", "k": [1, 2] } ]}`,
		},
		{
			"tabs and CRLF", "{\"name\":\"n\",\"plugins\":[\r\n\t{\r\n\t\t\"type\":\"a\"\r\n\t}\r\n]}", `{"type":"m","o":{"a":[{}]}}`,
			"{\"name\":\"n\",\"plugins\":[\r\n\t{\r\n\t\t\"type\":\"a\"\r\n\t},\r\n\t{\r\n\t\t\"type\":\"m\",\r\n\t\t\"o\":{\r\n\t\t\t\"a\":[\r\n\t\t\t\t{}\r\n\t\t\t]\r\n\t\t}\r\n\t}\r\n]}",
		},
		{
			"no space between the plugins", "{\"name\":\"n\",\"plugins\":[{\n  \"type\": \"a\"\n}]}", `{"type":"m"}`,
			"{\"name\":\"n\",\"plugins\":[{\n  \"type\": \"a\"\n},{\n  \"type\": \"m\"\n}]}",
		},
		{
			"replaced in place, behind it another", `{"name":"n","plugins":[{"type":"a"},{"type":"m","v":1},{"type":"z"}]}`, `{"type":"m","v":2}`,
			`{"name":"n","plugins":[{"type":"a"},{"type":"m","v":2},{"type":"z"}]}`,
		},
		{
			"the same in other words stays", `{"name":"n","plugins":[{"type":"a"},{ "v":1 , "type":"\u006d"}]}`, `{"type":"m","v":1}`,
			`{"name":"n","plugins":[{"type":"a"},{ "v":1 , "type":"\u006d"}]}`,
		},
		{
			"numbers compare as written", `{"name":"n","plugins":[{"type":"m","v":9007199254740993}]}`, `{"type":"m","v":9007199254740992}`,
			`{"name":"n","plugins":[{"type":"m","v":9007199254740992}]}`,
		},
		{
			"three times becomes once", `{"name":"n","plugins":[{"type":"m"}, {"type":"a"}, {"type":"m"}, {"type":"b"}, {"type":"m","v":3}]}`, `{"type":"m"}`,
			`{"name":"n","plugins":[{"type":"m"}, {"type":"a"}, {"type":"b"}]}`,
		},
		{
			"the last of two plugins keys counts", `{"plugins":[{"type":"x"}],"name":"n","plugins":[{"type":"a"}]}`, `{"type":"m"}`,
			`{"plugins":[{"type":"x"}],"name":"n","plugins":[{"type":"a"},{"type":"m"}]}`,
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := conflist.Insert([]byte(tc.in), []byte(tc.entry))
			require.NoError(t, err)
			assert.Equal(t, tc.want, string(got))
			again, err := conflist.Insert(got, []byte(tc.entry))
			require.NoError(t, err)
			assert.Equal(t, tc.want, string(again))
		})
	}
}

func TestInsertErrors(t *testing.T) {
	ok := `{"name":"n","plugins":[{"type":"a"}]}`
	for _, tc := range []struct {
		name, in, entry string
		is              error
		says            string
	}{
		{"empty", " \n", `{"type":"m"}`, conflist.ErrInvalid, "empty"},
		{"torn", "{\"name\":\"n\",\n \"plugins\":[{\"ty", `{"type":"m"}`, conflist.ErrInvalid, "line 2"},
		{"null", "null", `{"type":"m"}`, conflist.ErrInvalid, "null"},
		{"an array", "[]", `{"type":"m"}`, conflist.ErrInvalid, ""},
		{"beyond float64", `{"name":"n","x":1e999,"plugins":[{"type":"a"}]}`, `{"type":"m"}`, conflist.ErrInvalid, "1e999"},
		{"two documents", ok + ok, `{"type":"m"}`, conflist.ErrInvalid, "line 1, column 38"},
		{"byte order mark", "\ufeff" + ok, `{"type":"m"}`, conflist.ErrInvalid, "line 1, column 1"},
		{"no name", `{"plugins":[{"type":"a"}]}`, `{"type":"m"}`, conflist.ErrInvalid, `"name"`},
		{"no plugins in it", `{"name":"n","plugins":[]}`, `{"type":"m"}`, conflist.ErrInvalid, "empty"},
		{"no plugin object", `{"name":"n","plugins":[7]}`, `{"type":"m"}`, conflist.ErrInvalid, "plugin 0"},
		{"plugin without type", `{"name":"n","plugins":[{"type":"a"},{}]}`, `{"type":"m"}`, conflist.ErrInvalid, "plugin 1"},
		{"single", `{"name":"n","type":"a"}`, `{"type":"m"}`, conflist.ErrSingle, `"n"`},
		{"drop-ins only", `{"name":"n","cniVersion":"1.1.0"}`, `{"type":"m"}`, conflist.ErrNoInlinePlugins, `"n"`},
		{"entry without type", ok, `{}`, conflist.ErrInvalid, "entry"},
		{"entry no object", ok, `3`, conflist.ErrInvalid, "entry"},
		{"entry torn", ok, `{"type":"m"`, conflist.ErrInvalid, "entry"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := conflist.Insert([]byte(tc.in), []byte(tc.entry))
			require.ErrorIs(t, err, tc.is)
			assert.ErrorContains(t, err, tc.says)
			assert.Nil(t, got)
		})
	}
}

func TestRemove(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"absent", `{"name":"n","plugins":[{"type":"a"}]}`, `{"name":"n","plugins":[{"type":"a"}]}`},
		{"first", `{"name":"n","plugins":[ {"type":"m"} , {"type":"a"} ]}`, `{"name":"n","plugins":[ {"type":"a"} ]}`},
		{"middle", `{"name":"n","plugins":[{"type":"a"}, {"type":"m"}, {"type":"b"}]}`, `{"name":"n","plugins":[{"type":"a"}, {"type":"b"}]}`},
		{"all of several", `{"name":"n","plugins":[{"type":"m"},{"type":"m"},{"type":"a"},{"type":"m"}]}`, `{"name":"n","plugins":[{"type":"a"}]}`},
		{"absent in a single", `{"name":"n","type":"a"}`, `{"name":"n","type":"a"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := conflist.Remove([]byte(tc.in), "m")
			require.NoError(t, err)
			assert.Equal(t, tc.want, string(got))
		})
	}
	for _, in := range []string{`{"name":"n","plugins":[{"type":"m"}]}`, `{"name":"n","plugins":[{"type":"m"},{"type":"m"}]}`, `{"name":"n","type":"m"}`} {
		_, err := conflist.Remove([]byte(in), "m")
		require.ErrorIs(t, err, conflist.ErrLastPlugin)
	}
}

func TestToListKeepsNetworkAndVersion(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{`{"type":"a","name":"x<&>"}`, `{"cniVersion":"0.3.1","name":"x<&>","plugins":[{"type":"a","name":"x<&>"}]}`},
		{"{\"cniVersion\":\"0.4.0\",\r\n\"type\":\"a\",\"name\":\"n\"}\r\n", "{\r\n\"cniVersion\": \"0.4.0\",\r\n\"name\": \"n\",\r\n\"plugins\": [\r\n{\"cniVersion\":\"0.4.0\",\r\n\"type\":\"a\",\"name\":\"n\"}\r\n]\r\n}\r\n"},
	} {
		got, err := conflist.ToList([]byte(tc.in))
		require.NoError(t, err)
		assert.Equal(t, tc.want, string(got))
	}
	_, err := conflist.ToList([]byte(`{"type":"a"}`))
	require.ErrorIs(t, err, conflist.ErrInvalid)
}
