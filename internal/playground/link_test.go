package playground_test

import (
	"bytes"
	"compress/flate"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/playground"
)

// TestLinkThereAndBack: a link has all of a state, and is short enough to be pasted anywhere.
func TestLinkThereAndBack(t *testing.T) {
	titles := map[string]bool{}
	for _, e := range playground.Examples() {
		link, err := e.Link()
		require.NoError(t, err)
		assert.Less(t, len(link), 1000, e.Title)
		got, err := playground.Read(link)
		require.NoError(t, err)
		assert.Equal(t, e.State, got)
		titles[e.Group+e.Title] = true
	}
	assert.Len(t, titles, len(playground.Examples()), "a title is there twice")
}

func TestBadLinks(t *testing.T) {
	pack := func(text string) string {
		var b bytes.Buffer
		w, err := flate.NewWriter(&b, flate.BestCompression)
		require.NoError(t, err)
		_, err = w.Write([]byte(text))
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return playground.Address + "#1=" + base64.RawURLEncoding.EncodeToString(b.Bytes())
	}
	big := playground.State{Pod: strings.Repeat(" ", 1<<20)}
	_, err := big.Link()
	require.ErrorContains(t, err, "it has 1048586 bytes, more than 1048576")
	state, err := json.Marshal(big)
	require.NoError(t, err)
	for link, want := range map[string]string{
		playground.Address: "no state", playground.Address + "#2=AAAA": "no state", playground.Address + "#1=*": "illegal base64",
		playground.Address + "#1=AAAA": "read the playground's link", pack("[1]"): "cannot unmarshal", pack(string(state)): "more than 1048576 bytes",
	} {
		_, err := playground.Read(link)
		assert.ErrorContains(t, err, want, "%.80s", link)
	}
}
