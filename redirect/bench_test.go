package redirect_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// generate is what one ADD asks of this package: the texts of both families.
func generate(tb testing.TB, r redirect.Redirect) {
	rs, err := r.Ruleset()
	if err != nil || rs.IPv4.Transition(nil) == "" || rs.IPv6.Transition(nil) == "" {
		tb.Fatal(err)
	}
}

// TestAllocations bounds the work for the default pod by a count, which no
// busy machine changes.
func TestAllocations(t *testing.T) {
	r := redirect.Default()
	assert.Less(t, testing.AllocsPerRun(100, func() { generate(t, r) }), 200.0)
}

func BenchmarkGenerate(b *testing.B) {
	tproxy := redirect.Default()
	tproxy.Mode = redirect.ModeTProxy
	dns := redirect.Default()
	dns.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053}
	ports := redirect.Default()
	for i := uint16(0); i < 200; i += 2 {
		ports.Inbound.ExcludePorts = ports.Inbound.ExcludePorts.Union(redirect.Ports(8000 + i))
	}
	for _, c := range []struct {
		name string
		r    redirect.Redirect
	}{{"default", redirect.Default()}, {"tproxy", tproxy}, {"dns", dns}, {"ports", ports}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				generate(b, c.r)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	p := redirect.Default().MustRuleset().IPv4
	text := p.String()
	b.ReportAllocs()
	for b.Loop() {
		saved, err := ruleset.Parse(ruleset.IPv4, text)
		if err != nil || p.Diff(saved) != nil {
			b.Fatal(err)
		}
	}
}
