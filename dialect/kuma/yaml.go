package kuma

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/internal/brief"
	"github.com/meshcni/meshcni/internal/podyaml"
	"github.com/meshcni/meshcni/redirect"
)

// document is the YAML of Config, of which what concerns the program that
// applies the rules is left out.
type document struct {
	KumaDPUser         text      `json:"kumaDPUser"`
	IPFamilyMode       text      `json:"ipFamilyMode"`
	DropInvalidPackets *bool     `json:"dropInvalidPackets"`
	Log                logging   `json:"log"`
	Redirect           redirects `json:"redirect"`
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
}

// text is a string or a number.
type text string

// UnmarshalJSON takes both.
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

// list is an array of strings and numbers, or one of either with commas.
type list []string

// UnmarshalJSON takes all of them.
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
func (p *parser) yaml() {
	value, ok := p.annotations[Config]
	if !ok || strings.TrimSpace(value) == "" {
		p.Warn("annotation %s is absent: the pod is configured by its other annotations", Config)
		return
	}
	var d document
	if err := podyaml.Unmarshal([]byte(value), 0, &d); err != nil {
		p.Refuse(Config, value, "YAML as Kuma's injector writes it", err)
		return
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
	p.one("proxy.inboundPort", at+"port", d.Port, onePort, portInto(&p.r.Proxy.InboundPort))
	p.many("inbound.ports", at+"includePorts", d.IncludePorts, portList, func(l []string) error {
		set, err := parsePorts(l, false)
		if err == nil && !set.Empty() {
			p.r.Inbound.Ports = set
		}
		return err
	})
	p.many("inbound.excludePorts", at+"excludePorts", d.ExcludePorts, portList, setInto(&p.r.Inbound.ExcludePorts))
	p.many("inbound.excludeSources", at+"excludePortsForIPs", d.ExcludePortsForIPs, ipList, prefixesInto(&p.r.Inbound.ExcludeSources))
	p.many("inbound.ports", at+"excludePortsForUIDs", d.ExcludePortsForUIDs, "nothing", func([]string) error {
		return fmt.Errorf("packets that come in have no user")
	})
}

func (p *parser) yamlOutbound(d direction) {
	const at = "redirect.outbound."
	p.flag("outbound.cidrs", at+"enabled", d.Enabled, &p.outbound)
	p.one("proxy.outboundPort", at+"port", d.Port, onePort, portInto(&p.r.Proxy.OutboundPort))
	p.many("outbound.ports", at+"includePorts", d.IncludePorts, portList, setInto(&p.includeOutbound))
	p.many("outbound.exclude", at+"excludePorts", d.ExcludePorts, portList, setInto(&p.excludeOutbound))
	p.many("outbound.exclude", at+"excludePortsForUIDs", d.ExcludePortsForUIDs, userList, p.setExcludeUsers)
	p.many("outbound.exclude", at+"excludePortsForIPs", d.ExcludePortsForIPs, ipList, prefixesInto(&p.excludeOutboundIPs))
}

func (p *parser) yamlDNS(d redirects) {
	const at = "redirect.dns."
	enabled, captureAll, port := false, false, uint16(DNSPort)
	p.flag("dns.servers", at+"enabled", d.DNS.Enabled, &enabled)
	p.flag("dns.servers", at+"captureAll", d.DNS.CaptureAll, &captureAll)
	p.one("dns.port", at+"port", d.DNS.Port, onePort, portInto(&port))
	dns := redirect.DNS{Servers: redirect.AllPrefixes(), Port: port, UDPOnly: true}
	p.flag("dns.oneZone", at+"skipConntrackZoneSplit", d.DNS.SkipConntrackZoneSplit, &dns.OneZone)
	if !enabled {
		return
	}
	if !captureAll {
		if servers, ok := p.resolvers(); ok {
			dns.Servers = servers
		} else {
			p.Warn("the pod's resolv.conf cannot be seen from the host: look-ups to any server are captured")
		}
	}
	p.r.DNS = dns
}

// resolvers are the pod's, where it says all of them.
func (p *parser) resolvers() (redirect.PrefixSet, bool) {
	if p.pod.Spec.DNSPolicy != corev1.DNSNone || p.pod.Spec.DNSConfig == nil {
		return redirect.PrefixSet{}, false
	}
	servers, err := parseIPs(p.pod.Spec.DNSConfig.Nameservers)
	return servers, err == nil && !servers.Empty()
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
		networks = append(networks, redirect.VirtualNetwork{Interface: name, Local: local.Masked()})
	}
	p.r.VirtualNetworks = networks
	return nil
}

func portInto(to *uint16) func(string) error {
	return func(value string) error {
		port, err := redirect.ParsePort(value)
		if err == nil && port == 0 {
			err = fmt.Errorf("0 is no port to listen on")
		}
		if err == nil {
			*to = port
		}
		return err
	}
}

func setInto(to *redirect.PortSet) func([]string) error {
	return func(values []string) error {
		set, err := parsePorts(values, false)
		if err == nil {
			*to = set
		}
		return err
	}
}

func prefixesInto(to *redirect.PrefixSet) func([]string) error {
	return func(values []string) error {
		set, err := parseIPs(values)
		if err == nil {
			*to = set
		}
		return err
	}
}

// parseIPs reads addresses and prefixes; empty elements mean nothing.
func parseIPs(values []string) (redirect.PrefixSet, error) {
	var prefixes []netip.Prefix
	for _, v := range values {
		for s := range strings.SplitSeq(v, ",") {
			if s = strings.TrimSpace(s); s == "" {
				continue
			}
			prefix, err := netip.ParsePrefix(s)
			if a, aerr := netip.ParseAddr(s); aerr == nil && a.Zone() == "" {
				prefix, err = netip.PrefixFrom(a, a.BitLen()), nil
			}
			if err != nil {
				return redirect.PrefixSet{}, fmt.Errorf("%s is neither an address nor a CIDR prefix", brief.Quote(s))
			}
			prefixes = append(prefixes, prefix)
		}
	}
	return redirect.Prefixes(prefixes...), nil
}
