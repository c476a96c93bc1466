package redirect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/rulesettest"
)

// TestDefaultLeavesNothingOut: whoever replaces a field of the default need not know of another one to be rid of: besides the user, nothing
// in it lets anything pass.
func TestDefaultLeavesNothingOut(t *testing.T) {
	d := redirect.Default()
	assert.Equal(t, redirect.Redirect{
		Mode: redirect.ModeRedirect, IPv4: redirect.FamilyCapture, IPv6: redirect.FamilyCapture,
		Proxy:    redirect.Proxy{UIDs: d.Proxy.UIDs, OutboundPort: d.Proxy.OutboundPort, InboundPort: d.Proxy.InboundPort},
		Inbound:  redirect.Inbound{Ports: redirect.AllPorts()},
		Outbound: redirect.Outbound{CIDRs: redirect.AllPrefixes()},
		Names:    d.Names,
	}, d)
}

// TestWhoIsTheProxy: those pass whom the caller has named, and nobody else of the default.
func TestWhoIsTheProxy(t *testing.T) {
	senders := []string{"uid 7", "uid 1000 gid 1000", "uid 1337", "uid 1000 gid 1337", "uid 2102", "uid 1000 gid 2102", "uid 1000 mark 1792"}
	mark := redirect.Mark{Value: 1792, Mask: 0xf00}
	for name, tt := range map[string]struct {
		change func(*redirect.Proxy)
		pass   []string
	}{
		"the default":     {func(*redirect.Proxy) {}, []string{"uid 1337"}},
		"a user":          {func(p *redirect.Proxy) { p.UIDs = []uint32{2102} }, []string{"uid 2102"}},
		"two users":       {func(p *redirect.Proxy) { p.UIDs = []uint32{7, 2102} }, []string{"uid 7", "uid 2102"}},
		"a user, a group": {func(p *redirect.Proxy) { p.UIDs, p.GIDs = []uint32{7}, []uint32{2102} }, []string{"uid 7", "uid 1000 gid 2102"}},
		"a group besides": {func(p *redirect.Proxy) { p.GIDs = []uint32{2102} }, []string{"uid 1337", "uid 1000 gid 2102"}},
		"a group alone":   {func(p *redirect.Proxy) { p.UIDs, p.GIDs = nil, []uint32{2102} }, []string{"uid 1000 gid 2102"}},
		"a mark":          {func(p *redirect.Proxy) { p.UIDs, p.Mark = nil, mark }, []string{"uid 1000 mark 1792"}},
		"all of it": {func(p *redirect.Proxy) {
			*p = redirect.Proxy{UIDs: []uint32{2102}, OutboundPort: 4001, InboundPort: 4002}
		}, []string{"uid 2102"}},
	} {
		modes := []redirect.Mode{redirect.ModeRedirect, redirect.ModeTProxy}
		if name == "a mark" {
			modes = modes[:1] // the only one that knows a proxy by its mark
		}
		for _, mode := range modes {
			for _, loopback := range []redirect.Loopback{redirect.LoopbackHairpin, redirect.LoopbackPass, redirect.LoopbackCapture} {
				r := redirect.Default()
				tt.change(&r.Proxy)
				r.Mode, r.Loopback = mode, loopback
				var table strings.Builder
				for _, s := range senders {
					fate := fmt.Sprintf("redirect %d", r.Proxy.OutboundPort)
					if slices.Contains(tt.pass, s) {
						fate = "pass"
					}
					fmt.Fprintf(&table, "out tcp %s -> 192.0.2.9:443 => %s\nout tcp %s -> [2001:db8::9]:443 => %s\n", s, fate, s, fate)
				}
				t.Run(fmt.Sprintf("%s, %s, loopback %q", name, mode, loopback), func(t *testing.T) {
					rulesettest.New(t, r.MustRuleset(), "10.244.1.5", "fd00:10:244::5").Table(table.String())
				})
			}
		}
	}
}
