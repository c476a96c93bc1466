package kuma

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// setting is one setting of Kuma: an annotation, a key of the YAML, or both.
type setting struct {
	annotation string // empty: only the YAML has it
	path       string // in the YAML; empty: only the annotation exists
	field      string // of the Redirect, as a path in JSON
	value
	// moot reports whether the setting means nothing to the pod that the YAML describes; nil: never.
	moot func(*parser) bool
}

// value is a setting's spelling and effect.
type value struct {
	kind    kind
	allowed string // for people
	// set stores the elements of a list, or the one value of another kind. Without it the setting has no effect on rules.
	set func(*parser, []string) error
	// told reports whether the YAML, read into p, says all that the annotation, read into q, does.
	told func(p, q *parser) bool
}

// What is allowed, for people.
const (
	portList = "ports from 1 to 65535 separated by commas"
	ipList   = "addresses and CIDR prefixes of either family, separated by commas"
	userList = "PROTOCOL:PORTS:USERS, PORTS:USERS or USERS, separated by semicolons, such as tcp:22,80:1000-2000"
	boolean  = "true or false"
	onePort  = "a port from 1 to 65535"
)

const (
	inbound  = "redirect.inbound."
	outbound = "redirect.outbound."
	dns      = "redirect.dns."
)

// settings are read in this order.
var settings = sync.OnceValue(func() []setting {
	return []setting{
		{sidecarUID, "kumaDPUser", "proxy.uids", value{
			one, "a user id from 1 to 4294967294", single((*parser).setUser),
			func(p, q *parser) bool { return slices.Equal(p.r.Proxy.UIDs, q.r.Proxy.UIDs) },
		}, nil},
		{ipFamilyMode, "ipFamilyMode", "ipv6", value{
			one, "dualstack or ipv4", single((*parser).setFamilies), func(p, q *parser) bool { return p.r.IPv6 == q.r.IPv6 },
		}, nil},
		{dropInvalidPackets, "dropInvalidPackets", "dropInvalid", flagOf(func(p *parser) *bool { return &p.r.DropInvalid }), nil},
		{iptablesLogs, "log.enabled", "log", flagOf(func(p *parser) *bool { return &p.log }), nil},
		{"", "log.level", "log.level", value{kind: one, allowed: "a level from 0 to 7", set: single((*parser).setLogLevel)}, nil},

		{gateway, "", "inbound.ports", value{
			one, "enabled, disabled or builtin", single((*parser).setGateway), func(_, q *parser) bool { return q.inbound },
		}, noInbound},
		{"", inbound + "enabled", "inbound.ports", flagOf(func(p *parser) *bool { return &p.inbound }), nil},
		{proxyInboundPort, inbound + "port", "proxy.inboundPort", portOf(func(p *parser) *uint16 { return &p.r.Proxy.InboundPort }), noInbound},
		{"", inbound + "includePorts", "inbound.ports", value{kind: many, allowed: portList, set: (*parser).setInboundPorts}, nil},
		{excludeInboundPorts, inbound + "excludePorts", "inbound.excludePorts", portsOf(excludeInbound), noInbound},
		{probeProxyPort, "", "inbound.excludePorts", value{
			one, "a port from 0 to 65535", single((*parser).setProbePort),
			func(p, q *parser) bool { return holds(*excludeInbound(p), *excludeInbound(q)) },
		}, noInbound},
		{excludeInboundIPs, inbound + "excludePortsForIPs", "inbound.excludeSources",
			ipsOf(func(p *parser) *redirect.PrefixSet { return &p.r.Inbound.ExcludeSources }), noInbound},
		{"", inbound + "excludePortsForUIDs", "inbound.ports", value{kind: many, allowed: "nothing", set: refuseUsers}, nil},
		{"", inbound + "insertRedirectInsteadOfAppend", "", value{kind: flag}, nil},

		{"", outbound + "enabled", "outbound.cidrs", flagOf(func(p *parser) *bool { return &p.outbound }), nil},
		{proxyOutboundPort, outbound + "port", "proxy.outboundPort", portOf(func(p *parser) *uint16 { return &p.r.Proxy.OutboundPort }), nil},
		{"", outbound + "includePorts", "outbound.ports", portsOf(func(p *parser) *redirect.PortSet { return &p.includeOutbound }), nil},
		{excludeOutboundPorts, outbound + "excludePorts", "outbound.exclude", portsOf(func(p *parser) *redirect.PortSet { return &p.excludeOutbound }), nil},
		{excludeOutboundPortsForUIDs, outbound + "excludePortsForUIDs", "outbound.exclude", value{many, userList, (*parser).setExcludeUsers, toldUsers}, nil},
		{excludeTCPPortsForUIDs, "", "outbound.exclude", value{many, userList, (*parser).setExcludeUsers, toldUsers}, nil},
		{excludeUDPPortsForUIDs, "", "outbound.exclude", value{many, userList, (*parser).setExcludeUsers, toldUsers}, nil},
		{excludeOutboundIPs, outbound + "excludePortsForIPs", "outbound.exclude",
			ipsOf(func(p *parser) *redirect.PrefixSet { return &p.excludeOutboundIPs }), nil},
		// The redirection then comes before the rule that lets DNS queries over TCP pass. DNS queries over UDP and exclusions
		// still come first.
		{"", outbound + "insertRedirectInsteadOfAppend", "dns.tcpOutbound", flagOf(func(p *parser) *bool { return &p.dns.TCPOutbound }), nil},

		{builtinDNS, dns + "enabled", "dns.servers", flagOf(func(p *parser) *bool { return &p.dnsEnabled }), nil},
		{"", dns + "captureAll", "dns.servers", flagOf(func(p *parser) *bool { return &p.dnsAll }), nil},
		{builtinDNSPort, dns + "port", "dns.port", portOf(func(p *parser) *uint16 { return &p.dns.Port }), func(p *parser) bool { return !p.dnsEnabled }},
		{"", dns + "skipConntrackZoneSplit", "dns.oneZone", flagOf(func(p *parser) *bool { return &p.dns.OneZone }), nil},
		{"", dns + "resolvConfigPath", "", value{}, nil}, // a file of the node, not of the pod
		{"", "redirect.vnet.networks", "virtualNetworks", value{kind: many, allowed: "INTERFACE:PREFIX", set: (*parser).setNetworks}, nil},

		{"", dryRun, "", value{kind: flag}, nil}, // for the decision
		// Ebpf is a way to capture without rules, which later versions of Kuma lack.
		{"", ebpf, "", value{}, nil},
		// These configure Kuma's program that applies the rules, not the rules.
		{path: "cniMode"}, {path: "comments"}, {path: "iptablesExecutables"}, {path: "retry"}, {path: "storeFirewalld"},
		{path: "verbose"}, {path: "wait"}, {path: "waitInterval"},
	}
})

const (
	dryRun = "dryRun"
	ebpf   = "ebpf"
)

// apply reads a value of the setting, and remembers where it came from or why it is wrong.
func (s setting) apply(p *parser, key, text string, values []string) {
	if err := s.set(p, values); err != nil {
		p.Refuse(key, text, s.allowed, err)
		if s.field == "proxy.uids" {
			p.r.Proxy.UIDs = nil
		}
		return
	}
	p.Set(s.field, key, text)
}

// elements splits the text of the annotation.
func (s setting) elements(text string) []string {
	switch s.annotation {
	case excludeOutboundPortsForUIDs:
		return strings.Split(text, ";")
	case excludeTCPPortsForUIDs, excludeUDPPortsForUIDs:
		proto := "tcp:"
		if s.annotation == excludeUDPPortsForUIDs {
			proto = "udp:"
		}
		list := strings.Split(text, ";")
		for i, e := range list {
			if strings.TrimSpace(e) != "" {
				list[i] = proto + strings.TrimSpace(e)
			}
		}
		return list
	}
	return []string{text}
}

func noInbound(p *parser) bool { return !p.inbound }

func excludeInbound(p *parser) *redirect.PortSet { return &p.r.Inbound.ExcludePorts }

func single(set func(*parser, string) error) func(*parser, []string) error {
	return func(p *parser, values []string) error { return set(p, values[0]) }
}

func flagOf(field func(*parser) *bool) value {
	return value{flag, boolean, single(func(p *parser, v string) error { return into(field(p), v, parseBool) }), same(field)}
}

func portOf(field func(*parser) *uint16) value {
	return value{one, onePort, single(func(p *parser, v string) error { return into(field(p), v, parsePort) }), same(field)}
}

func portsOf(field func(*parser) *redirect.PortSet) value {
	return value{
		many, portList, func(p *parser, values []string) error { return into(field(p), values, plainPorts) },
		func(p, q *parser) bool { return holds(*field(p), *field(q)) },
	}
}

func ipsOf(field func(*parser) *redirect.PrefixSet) value {
	return value{
		many, ipList, func(p *parser, values []string) error { return into(field(p), values, parseIPs) },
		func(p, q *parser) bool { return holds(*field(p), *field(q)) },
	}
}

func same[T comparable](field func(*parser) *T) func(p, q *parser) bool {
	return func(p, q *parser) bool { return *field(p) == *field(q) }
}

// holds reports whether a has all of b. The injector adds ports of its own.
func holds[T interface {
	Union(o T) T
	Equal(o T) bool
}](a, b T) bool {
	return a.Union(b).Equal(a)
}

func toldUsers(p, q *parser) bool {
	told := map[string]bool{}
	for _, e := range p.excludeUsers {
		told[e.String()] = true
	}
	return !slices.ContainsFunc(q.excludeUsers, func(e redirect.Exclusion) bool { return !told[e.String()] })
}

// into stores a value that can be parsed.
func into[V, T any](to *T, value V, parse func(V) (T, error)) error {
	parsed, err := parse(value)
	if err == nil {
		*to = parsed
	}
	return err
}

func (p *parser) setUser(value string) error { return redirect.SetProxyUser(&p.r, value) }

func (p *parser) setFamilies(value string) error {
	switch strings.ToLower(value) {
	case "", "dualstack":
		p.r.IPv6 = redirect.FamilyCapture
	case "ipv4":
		p.r.IPv6 = redirect.FamilyPass
	default:
		return fmt.Errorf("%s is no mode of families", truncate.Quote(value))
	}
	return nil
}

func (p *parser) setLogLevel(value string) error {
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil || n > 7 {
		return fmt.Errorf("%s is no level", truncate.Quote(value))
	}
	p.logLevel = uint8(n)
	return nil
}

// setGateway captures nothing inbound: clients connect to a gateway's proxy.
func (p *parser) setGateway(value string) error {
	if value == "builtin" {
		value = "true"
	}
	on, err := parseBool(value)
	p.inbound = p.inbound && !on
	return err
}

func (p *parser) setInboundPorts(values []string) error {
	set, err := plainPorts(values)
	if err == nil && !set.Empty() {
		p.r.Inbound.Ports = set
	}
	return err
}

// setProbePort lets the kubelet's probes reach the port where the proxy answers them. 0 means that it does not.
func (p *parser) setProbePort(value string) error {
	port, err := redirect.ParsePort(value, redirect.Grammar{Zero: true})
	if err == nil && port != 0 {
		p.probeProxy = true
		p.r.Inbound.ExcludePorts = p.r.Inbound.ExcludePorts.Union(redirect.Ports(port))
	}
	return err
}

func refuseUsers(_ *parser, values []string) error {
	if strings.Trim(strings.Join(values, ""), " ,;") == "" {
		return nil
	}
	return fmt.Errorf("packets that come in have no user")
}

// setNetworks reads INTERFACE:PREFIX; an IPv6 prefix has colons of its own.
func (p *parser) setNetworks(values []string) (err error) {
	p.r.VirtualNetworks, err = truncate.Each(slices.Values(values), parseNetwork)
	return err
}

func parseNetwork(v string) (redirect.VirtualNetwork, error) {
	name, rest, ok := strings.Cut(v, ":")
	if !ok {
		return redirect.VirtualNetwork{}, fmt.Errorf("%s is not INTERFACE:PREFIX", truncate.Quote(v))
	}
	if !redirect.ValidInterfacePattern(name) {
		return redirect.VirtualNetwork{}, fmt.Errorf("%s is not the name of an interface, nor the beginning of one with + at its end", truncate.Quote(name))
	}
	local, err := netip.ParsePrefix(rest)
	if err != nil {
		return redirect.VirtualNetwork{}, fmt.Errorf("%s is not a CIDR prefix", truncate.Quote(rest))
	}
	local, err = unmapped(local)
	return redirect.VirtualNetwork{Interface: name, Local: local.Masked()}, err
}

// parseBool reads the booleans of Kuma's annotations.
func parseBool(value string) (bool, error) {
	switch strings.ToLower(value) {
	case "true", "yes", "enabled":
		return true, nil
	case "false", "no", "disabled":
		return false, nil
	}
	return false, fmt.Errorf("%s is not true or false", truncate.Quote(value))
}

func parsePort(value string) (uint16, error) { return redirect.ParsePort(value, redirect.Grammar{}) }

func plainPorts(list []string) (redirect.PortSet, error) { return parsePorts(list, false) }

func parsePorts(list []string, ranges bool) (redirect.PortSet, error) {
	sets, err := truncate.Each(elements(list), func(s string) ([]ruleset.PortRange, error) {
		one, err := redirect.ParsePorts(s, redirect.Grammar{Ranges: ranges})
		if err == nil && one.Contains(0) {
			err = fmt.Errorf("%s holds port 0", truncate.Quote(s))
		}
		return one.Ranges(), err
	})
	if err != nil {
		return redirect.PortSet{}, err
	}
	return redirect.PortRanges(slices.Concat(sets...)...), nil
}

// elements are those of lists with commas, without the spaces around them; empty ones mean nothing.
func elements(lists []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, list := range lists {
			for s := range strings.SplitSeq(list, ",") {
				if s = strings.TrimSpace(s); s != "" && !yield(s) {
					return
				}
			}
		}
	}
}

// setExcludeUsers reads exclusions by user, PROTOCOLS:PORTS:USERS. The first one or
// two parts may be missing, or "*", for any.
func (p *parser) setExcludeUsers(list []string) error {
	named := slices.DeleteFunc(slices.Clone(list), func(s string) bool { return strings.TrimSpace(s) == "" })
	// Each makes at least one rule, and takes more memory than its text.
	if len(named) > redirect.MaxRules {
		return fmt.Errorf("more than %d exclusions", redirect.MaxRules)
	}
	all, err := truncate.Each(slices.Values(named), func(s string) ([]redirect.Exclusion, error) {
		s = strings.TrimSpace(s)
		some, err := parseUserExclusion(s)
		if err != nil {
			err = fmt.Errorf("%s: %w", truncate.Quote(s), err)
		}
		return some, err
	})
	if p.excludeUsers = append(p.excludeUsers, slices.Concat(all...)...); len(p.excludeUsers) > redirect.MaxRules {
		return fmt.Errorf("more than %d exclusions", redirect.MaxRules)
	}
	return err
}

func parseUserExclusion(s string) ([]redirect.Exclusion, error) {
	parts := strings.Split(s, ":")
	for len(parts) < 3 {
		parts = append([]string{"*"}, parts...)
	}
	if len(parts) > 3 {
		return nil, fmt.Errorf("it has %d parts", len(parts))
	}
	ids, err := redirect.ParseIDRange(parts[2])
	if err != nil {
		return nil, err
	}
	ports := redirect.AllPorts()
	if parts[1] != "*" && parts[1] != "" {
		if ports, err = parsePorts(strings.Split(parts[1], ","), true); err != nil {
			return nil, err
		}
		if ports.Empty() {
			return nil, fmt.Errorf("%s names no port", truncate.Quote(parts[1]))
		}
	}
	protocols := []redirect.Protocol{redirect.TCP, redirect.UDP}
	if parts[0] != "*" && parts[0] != "" {
		protocols = nil
		for name := range strings.SplitSeq(parts[0], ",") {
			protocol := redirect.Protocol(strings.ToLower(name))
			if protocol != redirect.TCP && protocol != redirect.UDP {
				return nil, fmt.Errorf("%s is not tcp or udp", truncate.Quote(name))
			}
			if !slices.Contains(protocols, protocol) { // there are two
				protocols = append(protocols, protocol)
			}
		}
	}
	var out []redirect.Exclusion
	for _, protocol := range protocols {
		out = append(out, redirect.Exclusion{Protocol: protocol, Ports: ports, UIDs: []redirect.IDRange{ids}, CIDRs: redirect.AllPrefixes()})
	}
	return out, nil
}

// parseIPs reads addresses and prefixes; empty elements mean nothing.
func parseIPs(values []string) (redirect.PrefixSet, error) {
	prefixes, err := truncate.Each(elements(values), func(s string) (netip.Prefix, error) {
		prefix, err := redirect.ParsePrefix(s, redirect.Grammar{Addresses: true})
		if err == nil {
			prefix, err = unmapped(prefix)
		}
		return prefix, err
	})
	if err != nil {
		return redirect.PrefixSet{}, err
	}
	return redirect.Prefixes(prefixes...), nil
}

// unmapped returns the IPv4 prefix that an IPv4-mapped IPv6 one stands for (RFC
// 4291, section 2.5.5.2): who connects to such an address speaks IPv4.
func unmapped(p netip.Prefix) (netip.Prefix, error) {
	const mapped = 96 // bits before the IPv4 address
	switch {
	case !p.Addr().Is4In6():
		return p, nil
	case p.Bits() < mapped:
		return p, fmt.Errorf("%q is an IPv4-mapped prefix of less than %d bits, so neither of IPv4 nor of IPv6", p, mapped)
	}
	return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped), nil
}
