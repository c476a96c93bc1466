package rulesettest

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/redirect/trace"
)

// Rules is a program under test. Make one with [New].
type Rules struct {
	tb       testing.TB
	rules    ruleset.Ruleset
	podAddrs []netip.Addr
}

// New starts assertions on a program. The pod's addresses tell which packets stay within the pod; with none of a family
// given, each packet that comes in is taken to be for the pod. A malformed address ends the test.
func New(tb testing.TB, rs ruleset.Ruleset, podAddrs ...string) *Rules {
	tb.Helper()
	r := &Rules{tb: tb, rules: rs}
	for _, s := range podAddrs {
		a, err := netip.ParseAddr(s)
		if err != nil {
			tb.Fatalf("pod's address: %v", err)
		}
		r.podAddrs = append(r.podAddrs, a)
	}
	return r
}

// Table checks packets, one a line: the packet as [trace.ParsePacket] reads it, "=>", and the
// verdict: "pass", "drop", "redirect PORT", "redirect ADDR:PORT" or "tproxy PORT". Empty lines, and
// what follows '#', do not count. Every line is tried; a line that cannot be read is a failure.
func (r *Rules) Table(text string) {
	r.tb.Helper()
	n, tried := 0, 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		if strings.TrimSpace(line) == "" {
			continue
		}
		tried++
		packet, want, ok := strings.Cut(line, "=>")
		p, err := trace.ParsePacket(strings.TrimSpace(packet))
		if !ok || err != nil {
			r.tb.Errorf("line %d of the table: %q is no \"packet => verdict\": %v", n, strings.TrimSpace(line), err)
			continue
		}
		p.PodAddrs = r.podAddrs
		r.check(p, strings.Join(strings.Fields(want), " "))
	}
	if tried == 0 {
		r.tb.Errorf("the table has no packet")
	}
}

func (r *Rules) check(p trace.Packet, want string) {
	r.tb.Helper()
	result, err := trace.Trace(r.rules, p)
	switch {
	case err != nil:
		r.tb.Errorf("%s\n  want: %s\n  got:  %v", p, want, err)
	case result.String() != want:
		r.tb.Errorf("%s\n  want: %s\n  got:  %s", p, want, indent(result.Explain()))
	}
}

func indent(s string) string {
	return strings.ReplaceAll(strings.TrimSuffix(s, "\n"), "\n", "\n      ")
}
