package difftest_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/meshcni/meshcni/netnsexec/netnstest"
	"github.com/meshcni/meshcni/redirect"
)

// Case is a Redirect, and packets to send under it.
type Case struct {
	Redirect redirect.Redirect
	Probes   []netnstest.Probe
}

// Fates are where probes ended up, by the probes' names.
type Fates map[string]string

// Options are those of a world whose proxy is the Redirect's.
func (c Case) Options() netnstest.Options {
	p := c.Redirect.Proxy
	o := netnstest.Options{
		ProxyTCP: proxyTCP, ProxyUDP: proxyUDP, TransparentPort: p.InboundPort, ProxyMark: p.Mark.Value, Echo: true,
	}
	if len(p.UIDs) > 0 {
		o.ProxyUID = p.UIDs[0]
	}
	if len(p.GIDs) > 0 {
		o.ProxyGID = p.GIDs[0]
	}
	return o
}

// Predict is what the tracer says.
func (c Case) Predict() (Fates, error) {
	rs, err := c.Redirect.Ruleset()
	if err != nil {
		return nil, fmt.Errorf("render: %w", err)
	}
	m := model(c.Options())
	fates := Fates{}
	for _, p := range c.Probes {
		fate, _, err := m.Fate(rs, p)
		if err != nil {
			return nil, fmt.Errorf("predict %s: %w", p, err)
		}
		fates[p.String()] = fate
	}
	return fates, nil
}

// Explain is what a reader needs to find out who is wrong about a probe.
func (c Case) Explain(probe string) string {
	p, err := netnstest.ParseProbe(probe)
	if err != nil {
		return err.Error()
	}
	fate, result, err := model(c.Options()).Fate(c.Redirect.MustRuleset(), p)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("predicted %s, by %s", fate, result.Explain())
}

// GoString keeps rapid's report short.
func (c Case) GoString() string { return c.String() }

// String is the Redirect as JSON.
func (c Case) String() string {
	b, err := json.Marshal(c.Redirect)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Disagreements lists the probes that not all agree on, a line each, for
// fates by the name of who found them; empty when all agree.
func Disagreements(by map[string]Fates) []string {
	probes := map[string]bool{}
	for _, fates := range by {
		for p := range fates {
			probes[p] = true
		}
	}
	var lines []string
	for _, p := range slices.Sorted(maps.Keys(probes)) {
		said := map[string][]string{}
		for _, who := range slices.Sorted(maps.Keys(by)) {
			fate := by[who][p]
			said[fate] = append(said[fate], who)
		}
		if len(said) == 1 {
			continue
		}
		var parts []string
		for _, fate := range slices.Sorted(maps.Keys(said)) {
			parts = append(parts, fmt.Sprintf("%q (%s)", fate, strings.Join(said[fate], ", ")))
		}
		lines = append(lines, p+": "+strings.Join(parts, " or "))
	}
	return lines
}
