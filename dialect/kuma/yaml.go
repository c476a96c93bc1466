package kuma

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/redirect"
)

// document is the YAML of Config.
type document struct {
	KumaDPUser         text      `json:"kumaDPUser"`
	IPFamilyMode       text      `json:"ipFamilyMode"`
	DropInvalidPackets *bool     `json:"dropInvalidPackets"`
	DryRun             bool      `json:"dryRun"`
	Log                logging   `json:"log"`
	Redirect           redirects `json:"redirect"`
	// Ebpf is a way to capture without rules, which later versions of Kuma lack.
	Ebpf map[string]any `json:"ebpf"`

	// These configure Kuma's program that applies the rules, not the rules.
	CNIMode        any `json:"cniMode"`
	Comments       any `json:"comments"`
	Executables    any `json:"iptablesExecutables"`
	Retry          any `json:"retry"`
	StoreFirewalld any `json:"storeFirewalld"`
	Verbose        any `json:"verbose"`
	Wait           any `json:"wait"`
	WaitInterval   any `json:"waitInterval"`
}

type logging struct {
	Enabled *bool `json:"enabled"`
	Level   text  `json:"level"`
}

type redirects struct {
	Inbound  direction `json:"inbound"`
	Outbound direction `json:"outbound"`
	DNS      struct {
		Enabled                *bool `json:"enabled"`
		Port                   text  `json:"port"`
		CaptureAll             *bool `json:"captureAll"`
		SkipConntrackZoneSplit *bool `json:"skipConntrackZoneSplit"`
		// ResolvConfigPath is a file of the node, not of the pod.
		ResolvConfigPath any `json:"resolvConfigPath"`
	} `json:"dns"`
	VNet struct {
		Networks list `json:"networks"`
	} `json:"vnet"`
}

type direction struct {
	Enabled             *bool `json:"enabled"`
	Port                text  `json:"port"`
	IncludePorts        list  `json:"includePorts"`
	ExcludePorts        list  `json:"excludePorts"`
	ExcludePortsForUIDs list  `json:"excludePortsForUIDs"`
	ExcludePortsForIPs  list  `json:"excludePortsForIPs"`
	// InsertRedirect puts the redirection before other rules of the hook.
	InsertRedirect *bool `json:"insertRedirectInsteadOfAppend"`
}

// text is a string or a number.
type text string

// UnmarshalJSON accepts both.
func (t *text) UnmarshalJSON(b []byte) error {
	switch c := b[0]; {
	case c == '"':
		return json.Unmarshal(b, (*string)(t))
	case c == '-' || c >= '0' && c <= '9':
		*t = text(b)
	case c != 'n': // of null
		return fmt.Errorf("%s is neither text nor a number", brief.Quote(string(b)))
	}
	return nil
}

// list is an array of strings and numbers, or one of them with commas.
type list []string

// UnmarshalJSON accepts all of them.
func (l *list) UnmarshalJSON(b []byte) error {
	var many []text
	if json.Unmarshal(b, &many) == nil {
		for _, t := range many {
			*l = append(*l, string(t))
		}
		return nil
	}
	var one text
	if err := one.UnmarshalJSON(b); err != nil {
		return fmt.Errorf("%s is neither a list nor text", brief.Quote(string(b)))
	}
	*l = strings.Split(string(one), ",")
	return nil
}

// yaml reads the annotation with the whole configuration.
func (p *parser) yaml(r *reading) {
	if r.err != nil {
		p.Refuse(Config, r.value, "YAML as Kuma's injector writes it", r.err)
		return
	}
	if len(r.unread) > 0 {
		p.Warn(redirect.WarningUnknown, Config, "annotation %s has keys without effect, since nothing is known of them: %s", Config, some(r.unread))
	}
	d := &r.document
	if d.Ebpf["enabled"] == true {
		p.Warn(redirect.WarningNoEffect, Config+".ebpf", "annotation %s.ebpf has no effect: the pod is captured by rules", Config)
	}
	p.one("proxy.uids", "kumaDPUser", d.KumaDPUser, oneUID, p.setUser)
	p.one("ipv6", "ipFamilyMode", d.IPFamilyMode, families, p.setFamilies)
	p.flag("dropInvalid", "dropInvalidPackets", d.DropInvalidPackets, &p.r.DropInvalid)
	p.flag("log", "log.enabled", d.Log.Enabled, &p.log)
	p.one("log.level", "log.level", d.Log.Level, logLevels, p.setLogLevel)
	p.yamlInbound(d.Redirect.Inbound)
	p.yamlOutbound(d.Redirect.Outbound)
	p.yamlDNS(d.Redirect)
	p.many("virtualNetworks", "redirect.vnet.networks", d.Redirect.VNet.Networks, "INTERFACE:PREFIX", p.setNetworks)
}

func (p *parser) one(field, key string, value text, allowed string, parse func(string) error) {
	if value != "" {
		p.read(field, Config+"."+key, string(value), allowed, parse)
	}
}

func (p *parser) many(field, key string, values list, allowed string, parse func([]string) error) {
	if len(values) > 0 {
		p.read(field, Config+"."+key, strings.Join(values, ","), allowed, func(string) error { return parse(values) })
	}
}

func (p *parser) flag(field, key string, value *bool, to *bool) {
	if value != nil {
		*to = *value
		p.Set(field, Config+"."+key, strconv.FormatBool(*value))
	}
}

func (p *parser) setLogLevel(value string) error {
	n, err := strconv.ParseUint(value, 10, 8)
	if err != nil || n > 7 {
		return fmt.Errorf("%s is no level", brief.Quote(value))
	}
	p.logLevel = uint8(n)
	return nil
}

func (p *parser) yamlInbound(d direction) {
	const at = "redirect.inbound."
	p.flag("inbound.ports", at+"enabled", d.Enabled, &p.inbound)
	p.one("proxy.inboundPort", at+"port", d.Port, onePort, func(v string) error { return into(inboundPort(p), v, parsePort) })
	p.many("inbound.ports", at+"includePorts", d.IncludePorts, portList, func(l []string) error {
		set, err := plainPorts(l)
		if err == nil && !set.Empty() {
			p.r.Inbound.Ports = set
		}
		return err
	})
	p.many("inbound.excludePorts", at+"excludePorts", d.ExcludePorts, portList, setInto(excludeInbound(p)))
	p.many("inbound.excludeSources", at+"excludePortsForIPs", d.ExcludePortsForIPs, ipList, prefixesInto(excludeSources(p)))
	p.many("inbound.ports", at+"excludePortsForUIDs", d.ExcludePortsForUIDs, "nothing", func(l []string) error {
		if strings.Trim(strings.Join(l, ""), " ,;") == "" {
			return nil
		}
		return fmt.Errorf("packets that come in have no user")
	})
}

func (p *parser) yamlOutbound(d direction) {
	const at = "redirect.outbound."
	p.flag("outbound.cidrs", at+"enabled", d.Enabled, &p.outbound)
	p.one("proxy.outboundPort", at+"port", d.Port, onePort, func(v string) error { return into(outboundPort(p), v, parsePort) })
	p.many("outbound.ports", at+"includePorts", d.IncludePorts, portList, setInto(&p.includeOutbound))
	p.many("outbound.exclude", at+"excludePorts", d.ExcludePorts, portList, setInto(&p.excludeOutbound))
	p.many("outbound.exclude", at+"excludePortsForUIDs", d.ExcludePortsForUIDs, userList, p.setExcludeUsers)
	p.many("outbound.exclude", at+"excludePortsForIPs", d.ExcludePortsForIPs, ipList, prefixesInto(&p.excludeOutboundIPs))
	// The redirection then comes before the rule that lets DNS queries over TCP
	// pass. DNS queries over UDP and exclusions still come first.
	p.flag("dns.tcpOutbound", at+"insertRedirectInsteadOfAppend", d.InsertRedirect, &p.dns.TCPOutbound)
}

func (p *parser) yamlDNS(d redirects) {
	const at = "redirect.dns."
	p.flag("dns.servers", at+"enabled", d.DNS.Enabled, &p.dnsEnabled)
	p.flag("dns.servers", at+"captureAll", d.DNS.CaptureAll, &p.dnsAll)
	p.one("dns.port", at+"port", d.DNS.Port, onePort, func(v string) error { return into(dnsPort(p), v, parsePort) })
	p.flag("dns.oneZone", at+"skipConntrackZoneSplit", d.DNS.SkipConntrackZoneSplit, &p.dns.OneZone)
}

// setNetworks reads INTERFACE:PREFIX; an IPv6 prefix has colons of its own.
func (p *parser) setNetworks(values []string) error {
	var networks []redirect.VirtualNetwork
	for _, v := range values {
		name, rest, ok := strings.Cut(v, ":")
		if !ok {
			return fmt.Errorf("%s is not INTERFACE:PREFIX", brief.Quote(v))
		}
		if !redirect.ValidInterface(name) {
			return fmt.Errorf("%s is not the whole name of an interface", brief.Quote(name))
		}
		local, err := netip.ParsePrefix(rest)
		if err != nil {
			return fmt.Errorf("%s is not a CIDR prefix", brief.Quote(rest))
		}
		if local, err = unmapped(local); err != nil {
			return err
		}
		networks = append(networks, redirect.VirtualNetwork{Interface: name, Local: local.Masked()})
	}
	p.r.VirtualNetworks = networks
	return nil
}

func setInto(to *redirect.PortSet) func([]string) error {
	return func(values []string) error { return into(to, values, plainPorts) }
}

func prefixesInto(to *redirect.PrefixSet) func([]string) error {
	return func(values []string) error { return into(to, values, parseIPs) }
}

// parseIPs reads addresses and prefixes; empty elements mean nothing.
func parseIPs(values []string) (redirect.PrefixSet, error) {
	var prefixes []netip.Prefix
	for _, v := range values {
		for s := range strings.SplitSeq(v, ",") {
			if s = strings.TrimSpace(s); s == "" {
				continue
			}
			prefix, err := redirect.ParsePrefix(s, redirect.AllowAddresses)
			if err == nil {
				prefix, err = unmapped(prefix)
			}
			if err != nil {
				return redirect.PrefixSet{}, err
			}
			prefixes = append(prefixes, prefix)
		}
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
