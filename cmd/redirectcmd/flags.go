package redirectcmd

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/redirect"
)

// ruleFlag is one flag of the init-container program of Istio
// (tools/istio-iptables, pilot-agent istio-iptables), whose letters, names and
// variables scripts and pod templates rely on. A flag that is not given leaves
// the mesh's default, which is to capture; one that is given and empty means
// none. (That program treats the two alike and captures nothing unless told to.
// Injectors always tell.) Whoever says what is captured says all of it: the
// default exclusions go, as in that program.
type ruleFlag struct {
	name, short string
	kind        string
	usage       string
	set         func(b *flagBuild, value string) error
}

// flagBuild is what flags are read into: the Redirect, and what cannot be
// written into it before all flags are read.
type flagBuild struct {
	redirect.Redirect
	gidsSet, dualStack, redirectDNS, captureAllDNS bool
	probePort                                      uint16
	probeTimeout                                   time.Duration
	runValidation, skipApply, dryRun               bool
	warnings                                       []string
}

const (
	text = "string"
	flag = "bool"
)

var ruleFlags = []ruleFlag{
	{"envoy-port", "p", text, "port to which outbound connections are redirected", into(redirect.ParsePort, func(b *flagBuild) *uint16 { return &b.Proxy.OutboundPort })},
	{"inbound-capture-port", "z", text, "port to which inbound connections are redirected", into(redirect.ParsePort, func(b *flagBuild) *uint16 { return &b.Proxy.InboundPort })},
	{"inbound-tunnel-port", "e", text, "the proxy's tunnel port, never redirected", into(redirect.ParsePort, func(b *flagBuild) *uint16 { return &b.Proxy.TunnelPort })},
	{"proxy-uid", "u", text, "users of the proxy, whose traffic is not redirected", setUIDs},
	{"proxy-gid", "g", text, "groups of the proxy; default, the same as the users where the mesh goes by groups too", setGIDs},
	{"istio-inbound-interception-mode", "m", text, "REDIRECT or TPROXY", into(parseMode, func(b *flagBuild) *redirect.Mode { return &b.Mode })},
	{"inbound-tproxy-mark", "t", text, "mark of packets on their way to a transparent listener", into(parseNumber, func(b *flagBuild) *uint32 { return &b.Names.InboundMark })},
	{"inbound-tproxy-route-table", "r", text, "route table that keeps marked packets local", into(parseNumber, func(b *flagBuild) *uint32 { return &b.Names.RouteTable })},
	{"istio-inbound-ports", "b", text, "inbound ports that are redirected; * is all, empty none", into(parsePorts, func(b *flagBuild) *redirect.PortSet { return &b.Inbound.Ports })},
	{"istio-local-exclude-ports", "d", text, "inbound ports that are not, when all are", into(parsePorts, func(b *flagBuild) *redirect.PortSet { return &b.Inbound.ExcludePorts })},
	{"istio-service-cidr", "i", text, "destinations that are redirected; * is all, empty none", into(prefixes(redirect.AllowAll), func(b *flagBuild) *redirect.PrefixSet { return &b.Outbound.CIDRs })},
	{"istio-service-exclude-cidr", "x", text, "destinations that are not", into(prefixes(0), func(b *flagBuild) *redirect.PrefixSet { return &b.Outbound.ExcludeCIDRs })},
	{"istio-outbound-ports", "q", text, "outbound ports that are redirected whatever the destination", into(parsePorts, func(b *flagBuild) *redirect.PortSet { return &b.Outbound.Ports })},
	{"istio-local-outbound-ports-exclude", "o", text, "outbound ports that are not", into(parsePorts, func(b *flagBuild) *redirect.PortSet { return &b.Outbound.ExcludePorts })},
	{"kube-virt-interfaces", "k", text, "interfaces of virtual machines, whose inbound traffic counts as outbound", into(redirect.ParseInterfaces, func(b *flagBuild) *[]string { return &b.VirtualInterfaces })},
	{"istio-exclude-interfaces", "c", text, "interfaces that are left alone", into(redirect.ParseInterfaces, func(b *flagBuild) *[]string { return &b.ExcludeInterfaces })},
	{"istio-outbound-owner-groups", "", text, "groups (numeric) whose outbound traffic is redirected; * is all", into(parseOwnerGroups, func(b *flagBuild) *[]uint32 { return &b.Outbound.OwnerGroups })},
	{"istio-outbound-owner-groups-exclude", "", text, "groups (numeric) whose is not", into(redirect.ParseIDs, func(b *flagBuild) *[]uint32 { return &b.Outbound.ExcludeOwnerGroups })},
	{"istio-outbound-ipv4-loopback-cidr", "", text, "fixed to 127.0.0.1/32", fixedLoopback},
	{"redirect-dns", "", flag, "redirect look-ups to the servers in /etc/resolv.conf", into(parseBool, func(b *flagBuild) *bool { return &b.redirectDNS })},
	{"capture-all-dns", "", flag, "with --redirect-dns: to all servers", into(parseBool, func(b *flagBuild) *bool { return &b.captureAllDNS })},
	{"drop-invalid", "", flag, "drop packets that conntrack holds invalid", into(parseBool, func(b *flagBuild) *bool { return &b.DropInvalid })},
	{"dual-stack", "", flag, "capture IPv6 even if the pod's first address is IPv4", into(parseBool, func(b *flagBuild) *bool { return &b.dualStack })},
	{"iptables-probe-port", "", text, "port of validation's trial connections", into(redirect.ParsePort, func(b *flagBuild) *uint16 { return &b.probePort })},
	{"probe-timeout", "", text, "how long validation may take; default 5s", into(parseTimeout, func(b *flagBuild) *time.Duration { return &b.probeTimeout })},
	{"dry-run", "n", flag, "print the rules and change nothing", into(parseBool, func(b *flagBuild) *bool { return &b.dryRun })},
	{"skip-rule-apply", "", flag, "do not apply the rules", into(parseBool, func(b *flagBuild) *bool { return &b.skipApply })},
	{"run-validation", "", flag, "validate afterwards", into(parseBool, func(b *flagBuild) *bool { return &b.runValidation })},
}

// ruleVariables are those of rule flags beside the flag's own name.
var ruleVariables = map[string][]string{
	"redirect-dns": {"ISTIO_META_DNS_CAPTURE"},
	"drop-invalid": {"INVALID_DROP"},
	"dual-stack":   {"ISTIO_DUAL_STACK", "ISTIO_AGENT_DUAL_STACK"},
}

// actionFlags say what to do, not what the rules are; they go with -f, too.
var actionFlags = []string{"dry-run", "skip-rule-apply", "run-validation", "iptables-probe-port", "probe-timeout"}

// addRuleFlags declares the flags and returns them. Their values stay text
// until all that is wrong with them can be reported at once.
func addRuleFlags(fs *pflag.FlagSet) *pflag.FlagSet {
	rules := pflag.NewFlagSet("", pflag.ContinueOnError)
	cli.Group(rules, "In place of -f, as Istio's init-container program has them", func(fs *pflag.FlagSet) {
		for _, f := range ruleFlags {
			if f.kind == flag {
				fs.BoolP(f.name, f.short, false, f.usage)
			} else {
				fs.StringP(f.name, f.short, "", f.usage)
			}
		}
	})
	cli.BindEnv(rules, "", ruleVariables)
	fs.AddFlagSet(rules)
	return rules
}

// said returns what was said of a flag, and where: on the command line, or else
// in the environment, where an empty variable is a value too.
func (p Program) said(f *pflag.Flag) (value, where string, ok bool) {
	if f.Changed {
		where = "--" + f.Name
		if f.Shorthand != "" {
			where = "-" + f.Shorthand + " (" + where + ")"
		}
		return f.Value.String(), where, true
	}
	for _, name := range cli.Variables(f) {
		// A Service called envoy makes the kubelet set ENVOY_PORT=tcp://10.96.0.7:80 in every container.
		if v, ok := p.Env(name); ok && (v != "" || f.Value.Type() != flag) && !strings.Contains(v, "://") {
			return v, "variable " + name, true
		}
	}
	return "", "", false
}

// build reads the flags over base, which it leaves as it is. Everything that is
// wrong is in the error. Only says which flags to read, nil all.
func (c *common) build(base redirect.Redirect, only []string) (flagBuild, []redirect.Origin, error) {
	b := flagBuild{Redirect: base.Clone()}
	var origins []redirect.Origin
	var errs []error
	said := map[string]bool{}
	for _, f := range ruleFlags {
		if only != nil && !slices.Contains(only, f.name) {
			continue
		}
		value, where, ok := c.said(c.ruleFlags.Lookup(f.name))
		if !ok {
			continue
		}
		said[f.name] = true
		if err := f.set(&b, value); err != nil {
			errs = append(errs, fmt.Errorf("%s=%q: %w", where, value, err))
			continue
		}
		origins = append(origins, redirect.Origin{Field: f.name, Source: flagSource, Key: where, Value: value})
	}
	if said["istio-inbound-ports"] && !said["istio-local-exclude-ports"] {
		b.Inbound.ExcludePorts = redirect.PortSet{}
	}
	if (said["istio-service-cidr"] || said["istio-outbound-ports"]) && !said["istio-local-outbound-ports-exclude"] {
		b.Outbound.ExcludePorts = redirect.PortSet{}
	}
	if only == nil {
		errs = append(errs, b.finish(c.Program))
	}
	return b, origins, cli.Usage(errors.Join(errs...))
}

const flagSource redirect.Source = "flag"

// givenRules lists the flags on the command line that say what the rules are.
func (c *common) givenRules() (names []string) {
	for _, f := range ruleFlags {
		if c.ruleFlags.Lookup(f.name).Changed && !slices.Contains(actionFlags, f.name) {
			names = append(names, "--"+f.name)
		}
	}
	return names
}

// finish settles what depends on several flags.
func (b *flagBuild) finish(p Program) error {
	if !b.gidsSet && len(b.Proxy.GIDs) > 0 { // a mesh that goes by users alone stays so
		b.Proxy.GIDs = slices.Clone(b.Proxy.UIDs)
	}
	if b.dualStack {
		b.IPv6 = redirect.FamilyCapture
	}
	switch {
	case b.redirectDNS && b.captureAllDNS:
		b.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: dnsListener}
	case b.redirectDNS:
		servers, warnings, err := p.nameservers()
		if err != nil {
			return fmt.Errorf("--redirect-dns without --capture-all-dns: %w", err)
		}
		b.warnings = append(b.warnings, warnings...)
		b.DNS = redirect.DNS{Servers: redirect.Prefixes(servers...), Port: dnsListener}
	case b.captureAllDNS:
		b.warnings = append(b.warnings, "--capture-all-dns does nothing without --redirect-dns")
	}
	return nil
}

// dnsListener is the proxy's DNS port; the init-container program has no flag
// for it (istio.io/latest/docs/ops/deployment/application-requirements).
const dnsListener = 15053

const resolvConf = "/etc/resolv.conf"

// nameservers reads the resolvers of the pod that we run in (resolv.conf(5)).
func (p Program) nameservers() (servers []netip.Prefix, warnings []string, err error) {
	b, err := p.ReadFile(resolvConf)
	if err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "nameserver" {
			continue
		}
		a, err := netip.ParseAddr(f[1])
		if err != nil || a.Zone() != "" {
			warnings = append(warnings, fmt.Sprintf("%s: nameserver %q is no address that a rule can name", resolvConf, f[1]))
			continue
		}
		a = a.Unmap()
		servers = append(servers, netip.PrefixFrom(a, a.BitLen()))
	}
	if len(servers) == 0 {
		return nil, nil, fmt.Errorf("%s names no server", resolvConf)
	}
	return servers, warnings, nil
}

// into writes a parsed value to its field.
func into[T any](parse func(string) (T, error), field func(*flagBuild) *T) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) error {
		v, err := parse(value)
		if err == nil {
			*field(b) = v
		}
		return err
	}
}

func parsePorts(value string) (redirect.PortSet, error) {
	return redirect.ParsePorts(value, redirect.AllowAll)
}

func prefixes(g redirect.Grammar) func(string) (redirect.PrefixSet, error) {
	return func(value string) (redirect.PrefixSet, error) { return redirect.ParsePrefixes(value, g) }
}

func parseNumber(value string) (uint32, error) {
	n, err := strconv.ParseUint(value, 0, 32)
	if err != nil {
		return 0, errors.New("not a number from 0 to 4294967295")
	}
	return uint32(n), nil
}

func parseBool(value string) (bool, error) {
	on, err := strconv.ParseBool(value)
	if err != nil {
		return false, errors.New("not a boolean")
	}
	return on, nil
}

func parseTimeout(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return 0, errors.New("not a duration such as 5s")
	}
	return d, nil
}

func parseMode(value string) (redirect.Mode, error) {
	m := redirect.Mode(value)
	if m != redirect.ModeRedirect && m != redirect.ModeTProxy {
		return "", errors.New("not REDIRECT or TPROXY")
	}
	return m, nil
}

func parseOwnerGroups(value string) ([]uint32, error) {
	if strings.TrimSpace(value) == "*" {
		return nil, nil
	}
	return redirect.ParseIDs(value)
}

// setUIDs keeps the default for an empty value: a proxy without a user is none.
func setUIDs(b *flagBuild, value string) error {
	list, err := redirect.ParseIDs(value)
	if err == nil && len(list) > 0 {
		b.Proxy.UIDs = list
	}
	return err
}

func setGIDs(b *flagBuild, value string) error {
	list, err := redirect.ParseIDs(value)
	if err == nil && len(list) > 0 {
		b.Proxy.GIDs, b.gidsSet = list, true
	}
	return err
}

// fixedLoopback refuses what would silently not be done.
func fixedLoopback(_ *flagBuild, value string) error {
	if p, err := netip.ParsePrefix(value); err == nil && p == netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 32) {
		return nil
	}
	return errors.New("only 127.0.0.1/32 is supported: include or exclude other loopback ranges with -i and -x")
}
