//go:build linux

package installer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestConflict(t *testing.T) {
	f := conflict{contest: usualContest}
	at := time.Unix(1000, 0)
	lost := func() (bool, bool) {
		return f.lost(at, false, func(n int, over time.Duration) string { return "who" })
	}
	for range 2 {
		retry, begins := lost()
		assert.True(t, retry)
		assert.False(t, begins)
		at = at.Add(time.Second)
	}
	retry, begins := lost()
	assert.False(t, retry, "the third in 15 s")
	assert.True(t, begins)
	pause := time.Second
	for range 12 { // each attempt lost again doubles the pause, up to five minutes
		at = at.Add(pause - time.Millisecond)
		retry, _ = lost()
		assert.False(t, retry, "still pausing")
		at = at.Add(time.Millisecond)
		retry, _ = lost()
		assert.True(t, retry, "one attempt after a pause of %s", pause)
		at = at.Add(10 * time.Millisecond)
		retry, begins = lost()
		assert.False(t, retry)
		assert.False(t, begins, "it is the same conflict")
		pause = min(2*pause, 5*time.Minute)
	}
	at = at.Add(pause)
	retry, _ = lost()
	assert.True(t, retry)
	assert.Equal(t, 15*time.Second, f.kept(at))
	assert.Equal(t, time.Second, f.kept(at.Add(14*time.Second)))
	assert.Zero(t, f.kept(at.Add(15*time.Second)), "it is over")
	at = at.Add(15 * time.Second)
	retry, _ = lost()
	assert.True(t, retry, "and the count begins anew")
}

// An owner that rewrites its file once a minute, for ever, is no conflict.
func TestRewritesNowAndThenAreNoConflict(t *testing.T) {
	f := conflict{contest: usualContest}
	at := time.Unix(1000, 0)
	for range 1000 {
		retry, begins := f.lost(at, false, nil)
		assert.True(t, retry)
		assert.False(t, begins)
		assert.Zero(t, f.kept(at))
		at = at.Add(10 * time.Second)
	}
}

func TestCulprit(t *testing.T) {
	wrote := []byte(`{"name":"n","plugins":[{"type":"a"},{"type":"meshcni"}]}`)
	found := []byte(`{"name":"n","plugins":[{"type":"a"}]}`)
	assert.Equal(t, "10-a.conflist: our entry was removed 5 times in 3s, and pods that start before it is back bypass the mesh; "+
		"set --own-file (chart: cni.ownFile=true), with which the agent keeps a list of its own that the runtime loads first, "+
		"or find the program that writes it (two chaining agents, or one that wants the file for itself): the last rewrite took out 19 bytes and put in 0",
		culprit("10-a.conflist", false, false, wrote, found, 5, 3*time.Second))
	assert.Equal(t, "00-meshcni.conflist: our entry was removed 5 times in 1s, and pods that start before it is back bypass the mesh; "+
		"have the program that removes it leave others' files alone (Cilium: cni.exclusive=false), or remove it, if it is a second agent of this kind: "+
		"the file itself was removed or renamed", culprit("00-meshcni.conflist", true, false, wrote, nil, 5, time.Second))
	assert.Contains(t, culprit("00-multus.conflist", false, false, []byte(listing(multus("10-a.conflist"))), found, 3, time.Second),
		"; see why multus-shim starts so often")
	for name, got := range map[string]string{
		"its list":       culprit("05-cilium.conflist", false, false, wrote, found, 2, time.Second),
		"our list":       culprit("00-meshcni.conflist", true, false, []byte(ciliumList), nil, 2, time.Second),
		"another's list": culprit("10-a.conflist", false, true, wrote, nil, 2, time.Second),
	} {
		assert.Contains(t, got, "bypass the mesh; set cni.exclusive=false in Cilium's values: Cilium wants the directory of network configurations for itself", name)
		assert.NotContains(t, got, "own-file", name+": it would be renamed")
	}
}
