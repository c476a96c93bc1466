package kuma

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/redirect"
)

// parser reads a pod's configuration, and collects everything that is wrong.
type parser struct {
	dialect.Notes
	annotations map[string]string
	pod         *corev1.Pod
	r           redirect.Redirect

	inbound, outbound                bool
	includeOutbound, excludeOutbound redirect.PortSet
	excludeUsers                     []redirect.Exclusion
	excludeOutboundIPs               redirect.PrefixSet
	dns                              redirect.DNS // the Redirect's, if dnsEnabled
	dnsEnabled, dnsAll               bool
	probeProxy                       bool // it has a port
	log                              bool
	logLevel                         uint8
}

func newParser(pod *corev1.Pod) *parser {
	return &parser{
		annotations: pod.Annotations, pod: pod, r: Defaults(), inbound: true, outbound: true, logLevel: LogLevel,
		dns: redirect.DNS{Servers: redirect.AllPrefixes(), Port: DNSPort, UDPOnly: true},
	}
}

// What is allowed, for people.
const (
	portList  = "ports from 1 to 65535 separated by commas"
	ipList    = "addresses and CIDR prefixes of either family, separated by commas"
	userList  = "PROTOCOL:PORTS:USERS, PORTS:USERS or USERS, separated by semicolons, such as tcp:22,80:1000-2000"
	boolean   = "true or false"
	onePort   = "a port from 1 to 65535"
	oneUID    = "a user id from 1 to 4294967294"
	families  = "dualstack or ipv4"
	logLevels = "a level from 0 to 7"
)

// read reads one setting with a function that stores it.
func (p *parser) read(field, key, value, allowed string, parse func(string) error) {
	if err := parse(value); err != nil {
		p.Refuse(key, value, allowed, err)
		return
	}
	p.Set(field, key, value)
}

// annotation is a setting outside the YAML.
type annotation struct {
	key, field, allowed string
	parse               func(*parser, string) error
	// told reports whether the YAML, read into p, agrees with the annotation, read
	// into q.
	told func(p, q *parser) bool
}

// annotations are read in this order.
var annotations = []annotation{
	{SidecarUID, "proxy.uids", oneUID, (*parser).setUser, func(p, q *parser) bool { return slices.Equal(p.r.Proxy.UIDs, q.r.Proxy.UIDs) }},
	{ProxyOutboundPort, "proxy.outboundPort", onePort, portOf(outboundPort), same(outboundPort)},
	{ProxyInboundPort, "proxy.inboundPort", onePort, portOf(inboundPort), func(p, q *parser) bool {
		return !p.inbound || *inboundPort(p) == *inboundPort(q)
	}},
	{IPFamilyMode, "ipv6", families, (*parser).setFamilies, func(p, q *parser) bool { return p.r.IPv6 == q.r.IPv6 }},
	{ExcludeInboundPorts, "inbound.excludePorts", portList, portsOf(excludeInbound), toldInboundPorts},
	{ProbeProxyPort, "inbound.excludePorts", "a port from 0 to 65535", (*parser).setProbePort, toldInboundPorts},
	{ExcludeInboundIPs, "inbound.excludeSources", ipList, ipsOf(excludeSources), func(p, q *parser) bool {
		return !p.inbound || holds(*excludeSources(p), *excludeSources(q))
	}},
	{ExcludeOutboundPorts, "outbound.exclude", portList, portsOf(excludeOutbound), func(p, q *parser) bool {
		return holds(p.excludeOutbound, q.excludeOutbound)
	}},
	{ExcludeOutboundPortsForUIDs, "outbound.exclude", userList,
		func(p *parser, v string) error { return p.setExcludeUsers(strings.Split(v, ";")) }, toldUsers},
	{ExcludeOutboundIPs, "outbound.exclude", ipList, ipsOf(excludeDestinations), func(p, q *parser) bool {
		return holds(*excludeDestinations(p), *excludeDestinations(q))
	}},
	{DropInvalidPackets, "dropInvalid", boolean, boolOf(dropInvalid), same(dropInvalid)},
	{IptablesLogs, "log", boolean, boolOf(logged), same(logged)},
	{Gateway, "inbound.ports", "enabled, disabled or builtin", (*parser).setGateway, func(p, q *parser) bool { return q.inbound || !p.inbound }},
	{BuiltinDNS, "dns.servers", boolean, (*parser).setBuiltinDNS, same(dnsEnabled)},
	{BuiltinDNSPort, "dns.port", onePort, portOf(dnsPort), func(p, q *parser) bool {
		return !p.dnsEnabled || *dnsPort(p) == *dnsPort(q)
	}},
}

func outboundPort(p *parser) *uint16                    { return &p.r.Proxy.OutboundPort }
func inboundPort(p *parser) *uint16                     { return &p.r.Proxy.InboundPort }
func dnsPort(p *parser) *uint16                         { return &p.dns.Port }
func excludeInbound(p *parser) *redirect.PortSet        { return &p.r.Inbound.ExcludePorts }
func excludeOutbound(p *parser) *redirect.PortSet       { return &p.excludeOutbound }
func excludeSources(p *parser) *redirect.PrefixSet      { return &p.r.Inbound.ExcludeSources }
func excludeDestinations(p *parser) *redirect.PrefixSet { return &p.excludeOutboundIPs }
func dropInvalid(p *parser) *bool                       { return &p.r.DropInvalid }
func logged(p *parser) *bool                            { return &p.log }
func dnsEnabled(p *parser) *bool                        { return &p.dnsEnabled }

func (p *parser) setUser(value string) error {
	return redirect.SetProxyUser(&p.r, value)
}

func (p *parser) setFamilies(value string) error {
	switch strings.ToLower(value) {
	case "", "dualstack":
		p.r.IPv6 = redirect.FamilyCapture
	case "ipv4":
		p.r.IPv6 = redirect.FamilyPass
	default:
		return fmt.Errorf("%s is no mode of families", brief.Quote(value))
	}
	return nil
}

// setProbePort lets the kubelet's probes reach the port where the proxy answers
// them. 0 means that it does not.
func (p *parser) setProbePort(value string) error {
	port, err := redirect.ParsePort(value, redirect.AllowZero)
	if err == nil && port != 0 {
		p.probeProxy = true
		p.r.Inbound.ExcludePorts = p.r.Inbound.ExcludePorts.Union(redirect.Ports(port))
	}
	return err
}

// setGateway captures nothing inbound: clients connect to a gateway's proxy.
func (p *parser) setGateway(value string) error {
	if value == "builtin" {
		p.inbound = false
		return nil
	}
	on, err := parseBool(value)
	if err == nil && on {
		p.inbound = false
	}
	return err
}

// setBuiltinDNS captures DNS queries to any server, as Kuma 2.x does.
func (p *parser) setBuiltinDNS(value string) (err error) {
	p.dnsEnabled, err = parseBool(value)
	p.dnsAll = true
	return err
}

func boolOf(of func(*parser) *bool) func(*parser, string) error {
	return func(p *parser, value string) error { return into(of(p), value, parseBool) }
}

func portOf(of func(*parser) *uint16) func(*parser, string) error {
	return func(p *parser, value string) error { return into(of(p), value, parsePort) }
}

// portsOf reads a list; as in Kuma, empty elements mean nothing.
func portsOf(of func(*parser) *redirect.PortSet) func(*parser, string) error {
	return func(p *parser, value string) error {
		return into(of(p), strings.Split(value, ","), plainPorts)
	}
}

func ipsOf(of func(*parser) *redirect.PrefixSet) func(*parser, string) error {
	return func(p *parser, value string) error { return into(of(p), strings.Split(value, ","), parseIPs) }
}

// into stores a value that can be parsed.
func into[V, T any](to *T, value V, parse func(V) (T, error)) error {
	parsed, err := parse(value)
	if err == nil {
		*to = parsed
	}
	return err
}

// parseBool reads the booleans of Kuma's annotations.
func parseBool(value string) (bool, error) {
	switch strings.ToLower(value) {
	case "true", "yes", "enabled":
		return true, nil
	case "false", "no", "disabled":
		return false, nil
	}
	return false, fmt.Errorf("%s is not true or false", brief.Quote(value))
}

func parsePort(value string) (uint16, error) { return redirect.ParsePort(value, 0) }

func plainPorts(list []string) (redirect.PortSet, error) { return parsePorts(list, false) }

func parsePorts(list []string, ranges bool) (redirect.PortSet, error) {
	var set []redirect.PortRange
	for s := range strings.SplitSeq(strings.Join(list, ","), ",") {
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		var g redirect.Grammar
		if ranges {
			g = redirect.AllowRanges
		}
		one, err := redirect.ParsePorts(s, g)
		if err != nil {
			return redirect.PortSet{}, err
		}
		if one.Contains(0) {
			return redirect.PortSet{}, fmt.Errorf("%s holds port 0", brief.Quote(s))
		}
		set = append(set, one.Ranges()...)
	}
	return redirect.PortRanges(set...), nil
}

// setExcludeUsers reads exclusions by user, PROTOCOLS:PORTS:USERS. The first one or
// two parts may be missing, or "*", for any.
func (p *parser) setExcludeUsers(list []string) error {
	var all []redirect.Exclusion
	for _, s := range list {
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		some, err := parseUserExclusion(s)
		if err != nil {
			return fmt.Errorf("%s: %w", brief.Quote(s), err)
		}
		// Each makes at least one rule, and takes more memory than its text.
		if all = append(all, some...); len(all) > redirect.MaxRules {
			return fmt.Errorf("more than %d exclusions", redirect.MaxRules)
		}
	}
	p.excludeUsers = all
	return nil
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
			return nil, fmt.Errorf("%s names no port", brief.Quote(parts[1]))
		}
	}
	protocols := []redirect.Protocol{redirect.TCP, redirect.UDP}
	if parts[0] != "*" && parts[0] != "" {
		protocols = nil
		for name := range strings.SplitSeq(parts[0], ",") {
			protocol := redirect.Protocol(strings.ToLower(name))
			if protocol != redirect.TCP && protocol != redirect.UDP {
				return nil, fmt.Errorf("%s is not tcp or udp", brief.Quote(name))
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
