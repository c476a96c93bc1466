package trace_test

import (
	"encoding/json"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

func TestJSON(t *testing.T) {
	const line = `{"direction":"out","proto":"tcp","src":"10.244.1.5","dst":"10.0.0.1","sport":40000,"dport":443,` +
		`"uid":1000,"gid":1000,"in_interface":"","out_interface":"eth0"}`
	var p trace.Packet
	require.NoError(t, json.Unmarshal([]byte(line), &p))
	assert.Equal(t, trace.Packet{
		Direction: trace.Out, Proto: ruleset.TCP,
		Src: netip.MustParseAddrPort("10.244.1.5:40000"), Dst: netip.MustParseAddrPort("10.0.0.1:443"),
		UID: 1000, GID: 1000, OutInterface: "eth0",
	}, p)

	r, err := trace.Trace(redirect.Default().MustRuleset(), p)
	require.NoError(t, err)
	out, err := json.Marshal(r)
	require.NoError(t, err)
	assert.JSONEq(t, `{"verdict":"redirect","to_port":15001,
		"path":["nat/OUTPUT:1","nat/MESH_OUTPUT:5","nat/MESH_REDIRECT:1"],
		"reason":"outbound connection: redirected to port 15001"}`, string(out))

	out, err = json.Marshal(trace.Result{Verdict: trace.Pass, Path: []string{}})
	require.NoError(t, err)
	assert.JSONEq(t, `{"verdict":"pass","to_port":0,"path":[],"reason":""}`, string(out))

	for _, bad := range []string{
		`{"direction":"out","proto":"tcp","dst":"10.0.0.1","dport":1,"user":3}`,
		`{"direction":"out","proto":"quic","dst":"10.0.0.1"}`,
		`{"direction":"out","proto":"tcp","dst":"ten"}`,
		`{"direction":"out","proto":"tcp","dst":"10.0.0.1","dport":65536}`,
		`[]`,
	} {
		assert.Error(t, json.Unmarshal([]byte(bad), &trace.Packet{}), bad)
	}
}

func genPacket(t *rapid.T) trace.Packet {
	addrs := map[bool][]string{
		true:  {"127.0.0.1", "127.0.0.6", "10.244.1.5", "10.0.0.1", "192.168.77.1"},
		false: {"::1", "::6", "fd00:10:244::5", "2001:db8::10"},
	}[rapid.Bool().Draw(t, "ipv4")]
	addr := func(label string) netip.AddrPort {
		a := netip.MustParseAddr(rapid.SampledFrom(addrs).Draw(t, label))
		return netip.AddrPortFrom(a, rapid.SampledFrom([]uint16{0, 53, 80, 15001, 15006, 40000}).Draw(t, label+" port"))
	}
	p := trace.Packet{
		Direction: rapid.SampledFrom([]trace.Direction{trace.Out, trace.In}).Draw(t, "direction"),
		Proto:     rapid.SampledFrom([]ruleset.Proto{ruleset.TCP, ruleset.UDP, 1, 132}).Draw(t, "proto"),
		Dst:       addr("dst"),
		State:     rapid.SampledFrom([]ruleset.States{0, 1, 2, 4, 8, 16}).Draw(t, "state"),
		Mark:      rapid.SampledFrom([]uint32{0, 1337, 1338}).Draw(t, "mark"),
		ConnMark:  rapid.SampledFrom([]uint32{0, 1337}).Draw(t, "connmark"),
	}
	if rapid.Bool().Draw(t, "has source") {
		p.Src = addr("src")
	}
	interfaces := rapid.SampledFrom([]string{"", "lo", "eth0", "net1"})
	p.InInterface, p.OutInterface = interfaces.Draw(t, "in"), interfaces.Draw(t, "out")
	if p.Direction == trace.Out {
		p.UID = rapid.SampledFrom([]uint32{0, 1000, 1337}).Draw(t, "uid")
		p.GID = rapid.SampledFrom([]uint32{0, 1000, 1337}).Draw(t, "gid")
	}
	return p
}

func TestPacketTextRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := genPacket(t)
		again, err := trace.ParsePacket(p.String())
		require.NoError(t, err, p.String())
		require.Equal(t, p, again)

		// The JSON form leaves these three out.
		p.State, p.ConnMark = 0, 0
		b, err := json.Marshal(p)
		require.NoError(t, err)
		if !p.Src.Addr().IsValid() {
			p.Src = netip.AddrPort{}
		}
		var parsed trace.Packet
		require.NoError(t, json.Unmarshal(b, &parsed))
		require.Equal(t, p.String(), parsed.String())
	})
}

func TestParsePacketRefuses(t *testing.T) {
	for _, text := range []string{
		"", "out", "up tcp -> 10.0.0.1:1", "out ip -> 10.0.0.1:1", "out tcp 10.0.0.1:1", "out tcp -> 10.0.0.1",
		"out tcp -> 10.0.0.1:1 uid", "out tcp -> 10.0.0.1:1 uid x", "out tcp uid 1 gid 1", "out tcp -> 10.0.0.1:1 state odd",
		"out tcp -> 10.0.0.1:1 user 4", "out 0 -> 10.0.0.1:1", "out tcp -> 10.0.0.1:1 uid 4294967296",
	} {
		_, err := trace.ParsePacket(text)
		assert.Error(t, err, text)
	}
}
