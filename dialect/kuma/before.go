package kuma

import (
	"fmt"
	"strconv"

	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/warning"
)

// before reads the annotations of a pod without YAML, as the plugin of Kuma 2.x did.
func (p *parser) before() {
	p.dnsAll = true // as Kuma 2.x
	for _, s := range settings() {
		if value, ok := p.annotations[s.annotation]; ok && s.annotation != "" {
			s.apply(p, s.annotation, value, s.elements(value))
			if s.annotation == excludeTCPPortsForUIDs || s.annotation == excludeUDPPortsForUIDs {
				p.Warn(warning.Deprecated, s.annotation, "annotation %s is deprecated, and Kuma 2.9 and later do not read it: use %s, with the protocol before the ports", s.annotation, excludeOutboundPortsForUIDs)
			}
		}
	}
	p.virtualProbes()
	if value, ok := p.annotations[proxyInboundPortIPv6]; ok {
		p.inboundPortIPv6(value)
	}
	if value, ok := p.annotations[builtinDNSBefore2]; ok {
		p.builtinDNSBefore2(value)
	}
}

// virtualProbes lets the kubelet's probes reach the port where the proxy serves them, unless a newer Kuma's probe proxy
// does.
func (p *parser) virtualProbes() {
	port := strconv.Itoa(probePort)
	key := virtualProbes
	if value, ok := p.annotations[virtualProbesPort]; ok {
		key, port = virtualProbesPort, value
	}
	_, proxied := p.annotations[probeProxyPort]
	on := key == virtualProbesPort && !proxied
	if value, ok := p.annotations[virtualProbes]; ok {
		if err := into(&on, value, parseBool); err != nil {
			p.Refuse(virtualProbes, value, boolean, err)
		}
	}
	number, err := parsePort(port)
	switch {
	case err != nil:
		p.Refuse(key, port, onePort, err)
	case on && !p.probeProxy:
		p.r.Inbound.ExcludePorts = p.r.Inbound.ExcludePorts.Union(redirect.Ports(number))
		p.Set("inbound.excludePorts", key, p.annotations[key])
	}
}

// inboundPortIPv6 reads the port of inbound IPv6 connections. Since Kuma 2.5, whose family mode says whether they are
// captured, they go to the inbound port. Before, 0 meant that they are not captured.
func (p *parser) inboundPortIPv6(value string) {
	port, err := redirect.ParsePort(value, redirect.Grammar{Zero: true})
	_, mode := p.annotations[ipFamilyMode]
	own := port != 0 && port != oldInboundPortIPv6 && port != p.r.Proxy.InboundPort
	if err == nil && own && p.r.IPv6 == redirect.FamilyCapture {
		err = fmt.Errorf("IPv6 connections go to the port of all, %d", p.r.Proxy.InboundPort)
	}
	switch {
	case err != nil:
		p.Refuse(proxyInboundPortIPv6, value, fmt.Sprintf("the inbound port, or %d, which stands for it; 0, to leave IPv6 alone", oldInboundPortIPv6), err)
	case port == 0 && !mode:
		p.r.IPv6 = redirect.FamilyPass
		p.Set("ipv6", proxyInboundPortIPv6, value)
	}
}

// builtinDNSBefore2 refuses a pod whose DNS queries only an older plugin would
// capture: those of Kuma 2.x do not read this name.
func (p *parser) builtinDNSBefore2(value string) {
	if _, ok := p.annotations[builtinDNS]; ok {
		return
	}
	if on, err := parseBool(value); err != nil || on {
		p.Refuse(builtinDNSBefore2, value, builtinDNS+" in its place, as since Kuma 1.8", fmt.Errorf("it is no longer read, and look-ups would not be captured"))
	}
}
