//go:build linux

package probes_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/internal/probes"
	"github.com/meshcni/meshcni/netnsexec/netnstest"
)

// branchENI makes the host what the AWS VPC CNI makes of it for a pod with a branch ENI in strict mode: what is for the
// pod, and what the pod sends, be it for the host, goes by a table of its own to the cloud's network.
func branchENI(t *testing.T, w *world, demux string) (veth string) {
	t.Helper()
	route := do(t, w.host, "ip", "route", "get", pod4.String())
	fields := strings.Fields(route)
	for i, f := range fields {
		if f == "dev" {
			veth = fields[i+1]
		}
	}
	require.NotEmpty(t, veth, route)
	require.NoError(t, w.host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_early_demux", []byte(demux), 0) }))
	for _, family := range []struct{ ip, pod, net, gateway string }{{"-4", pod4.String(), "10.244.1.0/24", "10.244.2.5"}, {"-6", pod6.String(), "fd00:10:244::/64", "fd00:10:244:2::5"}} {
		for _, line := range []string{
			"rule add pref 20 lookup local", "rule del pref 0",
			"route del " + family.net + " dev " + veth, "route add default via " + family.gateway + " dev other",
			"route add " + family.pod + " dev " + veth + " table 101", "route add default via " + family.gateway + " dev other table 101",
			"rule add pref 10 iif " + veth + " lookup 101", "rule add pref 10 iif other lookup 101",
		} {
			do(t, w.host, "ip", append([]string{family.ip}, strings.Fields(line)...)...)
		}
	}
	return veth
}

// TestBranchENI: probes of a pod with a network interface of its own go over its veth and come back, and with the pod go
// the rules for that.
func TestBranchENI(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	w.capture(t)
	veth := branchENI(t, w, "0")
	rules := func() string { return do(t, w.host, "ip", "rule") + do(t, w.host, "ip", "-6", "rule") }
	before := rules()
	s := w.set(t)
	require.NoError(t, s.Put(uid, podAddr))
	assert.Equal(t, "peer=169.254.7.127", ask(t, w.host, pod4, peerPort))
	assert.Equal(t, "peer="+source6.String(), ask(t, w.host, pod6, peerPort))
	now := rules()
	for _, want := range []string{
		"512:\tfrom all to " + pod4.String() + " lookup 101", "512:\tfrom all to " + pod6.String() + " lookup 101",
		"9:\tfrom all iif " + veth + " lookup local",
	} {
		assert.Contains(t, now, want)
	}
	// What another agent made of the same is taken over with its sets.
	do(t, w.host, "ip", "rule", "del", "pref", "512")
	do(t, w.host, "ip", "rule", "add", "pref", "512", "to", pod4.String(), "lookup", "101")
	_, err := s.TakeOver(t.Context())
	require.NoError(t, err)
	assert.Equal(t, now, rules(), "taken over")
	do(t, w.host, "ip", "rule", "del", "pref", "512")
	result, err := s.Ensure(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 2, result.Routed)
	assert.Equal(t, now, rules(), "mended")

	// Beside ours may be another's rule to the same end. Nobody has said that it is to be taken over.
	another := []string{"pref", "512", "to", pod4.String(), "lookup", "101", "protocol", "77"}
	do(t, w.host, "ip", append([]string{"rule", "add"}, another...)...)
	beside := rules()
	require.Greater(t, strings.Count(beside, "512:"), strings.Count(now, "512:"))
	_, err = s.Ensure(t.Context())
	require.NoError(t, err)
	assert.Equal(t, beside, rules(), "another's rule is not touched")
	do(t, w.host, "ip", append([]string{"rule", "del"}, another...)...)
	require.Equal(t, now, rules())

	require.NoError(t, w.set(t).Delete(uid), "by another process")
	assert.NotContains(t, rules(), "512:")
	_, err = s.Ensure(t.Context())
	require.NoError(t, err)
	assert.Equal(t, before, rules())

	require.NoError(t, s.Put(uid, podAddr))
	require.NoError(t, s.Remove(t.Context()))
	assert.Equal(t, before, rules())
}

// TestNoBranchENI: where the host finds sockets early, or the pod has no table of its own, no policy rule is made.
func TestNoBranchENI(t *testing.T) {
	netnstest.Require(t, needs...)
	w := newWorld(t)
	branchENI(t, w, "1")
	before := do(t, w.host, "ip", "rule")
	s := w.set(t)
	require.NoError(t, s.Put(uid, podAddr))
	assert.Equal(t, before, do(t, w.host, "ip", "rule"))
	assert.NotContains(t, try(t, w.host, pod4, peerPort, time.Second), "peer=", "so that it is the rules that lead to the pod")

	require.NoError(t, w.host.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_early_demux", []byte("0"), 0) }))
	result, err := s.Sync(t.Context(), probes.Entries{pod4.Next(): otherUID})
	require.NoError(t, err)
	assert.Equal(t, 0, result.Routed)
	assert.Equal(t, before, do(t, w.host, "ip", "rule"))
}
