package consul

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/dialect"
	"github.com/meshcni/meshcni/internal/text/truncate"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
	"github.com/meshcni/meshcni/warning"
)

// config is the JSON of RedirectTrafficConfig: iptables.Config of Consul's sdk.
type config struct {
	ConsulDNSIP          string
	ConsulDNSPort        int
	ProxyUserID          string
	ProxyInboundPort     int
	ProxyOutboundPort    int
	ExcludeInboundPorts  []string
	ExcludeOutboundPorts []string
	ExcludeOutboundCIDRs []string
	ExcludeUIDs          []string

	// These configure Consul's program that applies the rules, not the rules.
	NetNS            json.RawMessage
	IptablesProvider json.RawMessage
	NftablesProvider json.RawMessage
}

type parser struct {
	dialect.Notes
	root     string // the annotation or key of CNI_ARGS that holds the JSON
	redirect *redirect.Redirect
}

// key is a field of the JSON, in errors and origins.
func (p *parser) key(field string) string { return p.root + "." + field }

// What is allowed, for people.
const (
	portList = "ports from 0 to 65535, and ranges such as 8000:8100"
	cidrList = "addresses and CIDR prefixes"
	uidList  = "user ids from 0 to 4294967294, and ranges such as 1000-2000"
	onePort  = "a port from 1 to 65535"
	oneUID   = "a user id from 1 to 4294967294"
)

func (p *parser) config(text string, dualStack bool) {
	var c config
	p.redirect.Proxy.UIDs = nil // unless the text names one
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		p.Refuse(p.root, text, "JSON as Consul's injector writes it", err)
		return
	}
	p.unknown(text)
	r := p.redirect
	p.user(c.ProxyUserID)
	p.port("ProxyInboundPort", "proxy.inboundPort", c.ProxyInboundPort, &r.Proxy.InboundPort)
	if c.ProxyOutboundPort != 0 {
		p.port("ProxyOutboundPort", "proxy.outboundPort", c.ProxyOutboundPort, &r.Proxy.OutboundPort)
	}
	r.Inbound.ExcludePorts = p.ports("ExcludeInboundPorts", "inbound.excludePorts", c.ExcludeInboundPorts)
	r.Outbound.ExcludePorts = p.ports("ExcludeOutboundPorts", "outbound.excludePorts", c.ExcludeOutboundPorts)
	r.Outbound.ExcludeCIDRs = p.cidrs(c.ExcludeOutboundCIDRs)
	if uids := p.uids(c.ExcludeUIDs); len(uids) > 0 {
		r.Outbound.Exclude = []redirect.Exclusion{{Ports: redirect.AllPorts(), UIDs: uids, CIDRs: redirect.AllPrefixes()}}
	}
	p.dns(c, dualStack)
}

// maxUnknown bounds the unknown keys that are warned of by name.
const maxUnknown = 8

// unknown warns of unknown keys, which may be a newer Consul's.
func (p *parser) unknown(text string) {
	var all map[string]json.RawMessage
	if json.Unmarshal([]byte(text), &all) != nil {
		return
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[config]()) {
		maps.DeleteFunc(all, func(name string, _ json.RawMessage) bool { return strings.EqualFold(name, f.Name) })
	}
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names[:min(len(names), maxUnknown)] {
		if q := truncate.Quote(name); q != `"`+name+`"` {
			name = q
		}
		p.Warn(warning.Unknown, p.key(name), "%s %s is not known, so it does nothing", cmp.Or(p.Source, redirect.FromAnnotation), p.key(name))
	}
	if more := len(names) - maxUnknown; more > 0 {
		p.Warn(warning.Unknown, p.root, "%s %s: %d more keys are not known, so they do nothing", cmp.Or(p.Source, redirect.FromAnnotation), p.root, more)
	}
}

func (p *parser) user(value string) {
	err := redirect.SetProxyUser(p.redirect, value)
	if value == "" {
		err = fmt.Errorf("it is required")
	}
	if err != nil {
		p.Refuse(p.key("ProxyUserID"), value, oneUID, err)
		return
	}
	p.Set("proxy.uids", p.key("ProxyUserID"), value)
}

func (p *parser) port(name, field string, value int, to *uint16) {
	if value < 1 || value > 65535 {
		p.Refuse(p.key(name), strconv.Itoa(value), onePort, fmt.Errorf("%d is no port to listen on", value))
		return
	}
	*to = uint16(value)
	p.Set(field, p.key(name), strconv.Itoa(value))
}

// each reads a list. Its error names every bad element.
func each[T any](p *parser, name, field, allowed string, values []string, parse func(string) (T, error)) []T {
	out, err := truncate.Each(slices.Values(values), parse)
	if err != nil {
		p.Refuse(p.key(name), strings.Join(values, ","), allowed, err)
	}
	if len(values) > 0 {
		p.Set(field, p.key(name), strings.Join(values, ","))
	}
	return out
}

func (p *parser) ports(name, field string, values []string) redirect.PortSet {
	return redirect.PortRanges(each(p, name, field, portList, values, parsePorts)...)
}

// parsePorts reads what iptables accepts after --dport, except names.
func parsePorts(s string) (ruleset.PortRange, error) {
	first, last, isRange := strings.Cut(s, ":")
	a, err := redirect.ParsePort(first, redirect.Grammar{Zero: true})
	b := a
	if err == nil && isRange {
		b, err = redirect.ParsePort(last, redirect.Grammar{Zero: true})
	}
	if err == nil && b < a {
		err = fmt.Errorf("range %s ends before it begins", truncate.Quote(s))
	}
	return ruleset.PortRange{First: a, Last: b}, err
}

func (p *parser) cidrs(values []string) redirect.PrefixSet {
	parse := func(s string) (netip.Prefix, error) {
		return redirect.ParsePrefix(s, redirect.Grammar{Addresses: true})
	}
	return redirect.Prefixes(each(p, "ExcludeOutboundCIDRs", "outbound.excludeCIDRs", cidrList, values, parse)...)
}

func (p *parser) uids(values []string) []redirect.IDRange {
	ranges := each(p, "ExcludeUIDs", "outbound.exclude", uidList, values, redirect.ParseIDRange)
	slices.SortFunc(ranges, func(a, b redirect.IDRange) int {
		return cmp.Or(cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
	})
	return slices.Compact(ranges)
}

// dns sends DNS queries to Consul's resolver: all of them if only its address is
// given, and with a port those to the resolver's own address.
func (p *parser) dns(c config, dualStack bool) {
	family, local := ruleset.IPv4, netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if dualStack {
		family, local = ruleset.IPv6, netip.IPv6Loopback()
	}
	if c.ConsulDNSPort < 0 || c.ConsulDNSPort > 65535 {
		p.Refuse(p.key("ConsulDNSPort"), strconv.Itoa(c.ConsulDNSPort), "a port from 0 to 65535", fmt.Errorf("%d is no port", c.ConsulDNSPort))
		return
	}
	to := local
	if c.ConsulDNSIP != "" {
		var err error
		if to, err = netip.ParseAddr(c.ConsulDNSIP); err != nil || to.Zone() != "" || to.IsUnspecified() {
			p.Refuse(p.key("ConsulDNSIP"), c.ConsulDNSIP, "an address", fmt.Errorf("%s is no address of a resolver", truncate.Quote(c.ConsulDNSIP)))
			return
		}
		if ruleset.FamilyOf(to) != family {
			p.Refuse(p.key("ConsulDNSIP"), c.ConsulDNSIP, "with dual stack an IPv6 address, else an IPv4 address",
				fmt.Errorf("%s is not %s, as dual-stack=%t needs", to, family, dualStack))
			return
		}
	}
	if c.ConsulDNSIP == "" && c.ConsulDNSPort == 0 {
		return
	}
	servers := redirect.AllPrefixes()
	if c.ConsulDNSPort != 0 {
		servers = redirect.Prefixes(netip.PrefixFrom(to, to.BitLen()))
	}
	p.redirect.DNS = redirect.DNS{
		Servers: servers, Everyone: true,
		To: []netip.AddrPort{netip.AddrPortFrom(to, uint16(c.ConsulDNSPort))},
	}
	p.Set("dns.to", p.key("ConsulDNSIP"), c.ConsulDNSIP)
}
