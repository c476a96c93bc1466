package zds_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/nodeproxy/zds"
)

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	require.NoError(t, err)
	return b
}

// The bytes were written down from Istio's zds.proto, field by field.
var goldenRequests = []struct {
	bytes   string
	request zds.Request
}{
	{
		"0a 19" + "0a 05 75 69 64 2d 61" + "12 10" + "0a 04 63 61 72 74" + "12 04 73 68 6f 70" + "1a 02 73 61",
		zds.Request{Kind: zds.Add, UID: "uid-a", Info: &zds.Info{Name: "cart", Namespace: "shop", ServiceAccount: "sa"}},
	},
	{"0a 09" + "0a 05 75 69 64 2d 61" + "12 00", zds.Request{Kind: zds.Add, UID: "uid-a", Info: &zds.Info{}}},
	{"12 07" + "12 05 75 69 64 2d 61", zds.Request{Kind: zds.Del, UID: "uid-a"}},
	{"1a 00", zds.Request{Kind: zds.SnapshotSent}},
	{"2a 07" + "0a 05 75 69 64 2d 61", zds.Request{Kind: zds.Keep, UID: "uid-a"}},
}

func TestGoldenRequests(t *testing.T) {
	for _, g := range goldenRequests {
		packet, err := g.request.Marshal()
		require.NoError(t, err)
		assert.Equal(t, unhex(t, g.bytes), packet, g.request.Kind)
		request, err := zds.ParseRequest(packet)
		require.NoError(t, err)
		assert.Equal(t, g.request, request)
	}
}

func TestGoldenAnswers(t *testing.T) {
	assert.Equal(t, unhex(t, "08 01"), zds.MarshalHello())
	assert.NoError(t, zds.ParseHello(unhex(t, "08 01")))
	for bytes, want := range map[string]string{
		"0a 00":             "",
		"0a 04 0a 02 6e 6f": "no",
	} {
		assert.Equal(t, unhex(t, bytes), zds.MarshalResponse(want))
		reason, err := zds.ParseResponse(unhex(t, bytes))
		require.NoError(t, err)
		assert.Equal(t, want, reason)
	}
}

// A newer peer may say more; protobuf wants that skipped. Of a choice the last counts, and a field that is there twice too.
func TestUnknownFieldsAreSkipped(t *testing.T) {
	add := unhex(t, "0a 19"+"0a 05 75 69 64 2d 61"+"12 10"+"0a 04 63 61 72 74"+"12 04 73 68 6f 70"+"1a 02 73 61")
	want, err := zds.ParseRequest(add)
	require.NoError(t, err)
	for name, packet := range map[string]string{
		"beside the choice": "50 01" + hex.EncodeToString(add) + "82 01 01 78",
		"in the pod":        "0a 1b" + "0a 05 75 69 64 2d 61" + "12 10" + "0a 04 63 61 72 74" + "12 04 73 68 6f 70" + "1a 02 73 61" + "18 07",
		"the trust domain":  "0a 1e" + "0a 05 75 69 64 2d 61" + "12 15" + "0a 04 63 61 72 74" + "12 04 73 68 6f 70" + "1a 02 73 61" + "22 03 61 2e 62",
		"a group":           "53 08 01 54" + hex.EncodeToString(add),
		"twice":             "0a 07 0a 05 75 69 64 2d 62" + hex.EncodeToString(add),
		"another before":    "12 07 12 05 75 69 64 2d 61" + hex.EncodeToString(add),
	} {
		got, err := zds.ParseRequest(unhex(t, packet))
		require.NoError(t, err, name)
		assert.Equal(t, want, got, name)
	}
	reason, err := zds.ParseResponse(unhex(t, "10 05 0a 06 10 01 0a 02 6e 6f"))
	require.NoError(t, err)
	assert.Equal(t, "no", reason)
	assert.NoError(t, zds.ParseHello(unhex(t, "12 01 78 08 01")))
}

func TestMalformedMessagesAreRefused(t *testing.T) {
	for name, packet := range map[string]string{
		"empty":                      "",
		"no choice":                  "50 01",
		"cut in a tag":               "0a",
		"cut in a value":             "0a 05 0a",
		"longer than it says":        "12 07 12 05 75 69 64 2d 61 ff",
		"a length that is too large": "0a ff ff ff ff ff ff ff ff 7f",
		"a number for a message":     "08 01",
		"a number for a string":      "12 02 10 01",
		"a number for the pod":       "0a 02 10 01",
		"not UTF-8":                  "12 03 12 01 ff",
		"field 0":                    "02 00",
		"the end of a group":         "0c",
	} {
		_, err := zds.ParseRequest(unhex(t, packet))
		assert.ErrorIs(t, err, zds.ErrMalformed, name)
	}
	for name, packet := range map[string]string{
		"empty": "", "no ack": "10 05", "a number for an ack": "08 01", "a number for the reason": "0a 02 08 01", "cut": "0a 04 0a 02 6e", "not UTF-8": "0a 03 0a 01 ff",
	} {
		_, err := zds.ParseResponse(unhex(t, packet))
		assert.ErrorIs(t, err, zds.ErrMalformed, name)
	}
	for name, packet := range map[string]string{"empty": "", "not used": "08 00", "of tomorrow": "08 02", "text": "0a 01 31", "cut": "08"} {
		assert.Error(t, zds.ParseHello(unhex(t, packet)), name)
	}
}

// What would be cut off at the other end is not sent. The longest names that Kubernetes knows fit.
func TestRequestsThatCannotBe(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	longest := zds.Request{Kind: zds.Add, UID: long(128), Info: &zds.Info{Name: long(253), Namespace: long(63), ServiceAccount: long(253)}}
	packet, err := longest.Marshal()
	require.NoError(t, err)
	assert.LessOrEqual(t, len(packet), zds.MaxMessage)

	exact := zds.Request{Kind: zds.Del, UID: long(1024 - 6)}
	packet, err = exact.Marshal()
	require.NoError(t, err)
	assert.Len(t, packet, zds.MaxMessage)
	exact.UID += "x"
	_, err = exact.Marshal()
	require.ErrorIs(t, err, zds.ErrTooLong)
	longest.Info.Name = long(700)
	_, err = longest.Marshal()
	require.ErrorIs(t, err, zds.ErrTooLong)

	for name, request := range map[string]zds.Request{
		"nothing":              {},
		"no pod":               {Kind: zds.Del},
		"no identity":          {Kind: zds.Add, UID: "a"},
		"an identity too many": {Kind: zds.Keep, UID: "a", Info: &zds.Info{}},
		"a pod too many":       {Kind: zds.SnapshotSent, UID: "a"},
		"no such request":      {Kind: 4, UID: "a"},
		"not UTF-8":            {Kind: zds.Del, UID: "\xff"},
		"a name not UTF-8":     {Kind: zds.Add, UID: "a", Info: &zds.Info{Name: "\xff"}},
	} {
		_, err := request.Marshal()
		assert.Error(t, err, name)
	}
}

// A reason of any length and form reaches the agent.
func TestReasonsFit(t *testing.T) {
	for _, reason := range []string{strings.Repeat("é", 1024), strings.Repeat("x", 5000), "\xff\xfe", strings.Repeat("a\xff", 700)} {
		packet := zds.MarshalResponse(reason)
		assert.LessOrEqual(t, len(packet), zds.MaxMessage)
		got, err := zds.ParseResponse(packet)
		require.NoError(t, err)
		assert.NotEmpty(t, got)
	}
}

func FuzzParseRequest(f *testing.F) {
	for _, g := range goldenRequests {
		f.Add(unhex(f, g.bytes))
	}
	f.Add(unhex(f, "0a ff ff ff ff ff ff ff ff 7f"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		request, err := zds.ParseRequest(packet)
		if err != nil {
			require.ErrorIs(t, err, zds.ErrMalformed)
			return
		}
		again, err := request.Marshal()
		if err != nil { // it says too little, or more than fits
			return
		}
		same, err := zds.ParseRequest(again)
		require.NoError(t, err)
		require.Equal(t, request, same)
		require.True(t, utf8.ValidString(request.UID))
	})
}

func FuzzParseResponse(f *testing.F) {
	f.Add(unhex(f, "0a 00"))
	f.Add(unhex(f, "0a 04 0a 02 6e 6f"))
	f.Add(unhex(f, "10 05 0a 06 10 01 0a 02 6e 6f"))
	f.Fuzz(func(t *testing.T, packet []byte) {
		reason, err := zds.ParseResponse(packet)
		if err != nil {
			require.ErrorIs(t, err, zds.ErrMalformed)
			return
		}
		again, err := zds.ParseResponse(zds.MarshalResponse(reason))
		require.NoError(t, err)
		if len(packet) <= zds.MaxMessage {
			require.Equal(t, reason, again)
		}
	})
}
