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

	"github.com/meshcni/meshcni/redirect"
)

// ruleFlag is one flag of the init-container program of Istio
// (tools/istio-iptables, pilot-agent istio-iptables), whose letters, names and
// variables scripts and pod templates rely on. A flag that is not given leaves
// the mesh's default, which is to capture; one that is given and empty means
// none. (That program takes the two for the same and captures nothing unless
// told to. Injectors always tell.) Who says what is captured says all of it:
// the default exclusions go, as in that program.
type ruleFlag struct {
	name, short string
	// env are further variables beside the flag's own, which is its name in
	// upper case with '_' for '-'. A flag on the command line wins.
	env   []string
	usage string
	bool  bool
	set   func(b *flagBuild, value string) error
}

// flagBuild is what flags are read into: the Redirect, and what cannot be
// said in one before all flags are read.
type flagBuild struct {
	redirect.Redirect
	gidsSet, dualStack, redirectDNS, captureAllDNS bool
	probePort                                      uint16
	probeTimeout                                   time.Duration
	runValidation, skipApply, dryRun               bool
	warnings                                       []string
}

var ruleFlags = []ruleFlag{
	{"envoy-port", "p", nil, "port to which outbound connections are redirected", false, port(func(b *flagBuild) *uint16 { return &b.Proxy.OutboundPort })},
	{"inbound-capture-port", "z", nil, "port to which inbound connections are redirected", false, port(func(b *flagBuild) *uint16 { return &b.Proxy.InboundPort })},
	{"inbound-tunnel-port", "e", nil, "the proxy's tunnel port, never redirected", false, port(func(b *flagBuild) *uint16 { return &b.Proxy.TunnelPort })},
	{"proxy-uid", "u", nil, "users of the proxy, whose traffic is not redirected", false, setUIDs},
	{"proxy-gid", "g", nil, "groups of the proxy; default, the same as the users where the mesh goes by groups too", false, setGIDs},
	{"istio-inbound-interception-mode", "m", nil, "REDIRECT or TPROXY", false, setMode},
	{"inbound-tproxy-mark", "t", nil, "mark of packets on their way to a transparent listener", false, number(func(b *flagBuild) *uint32 { return &b.Names.InboundMark })},
	{"inbound-tproxy-route-table", "r", nil, "route table that keeps marked packets local", false, number(func(b *flagBuild) *uint32 { return &b.Names.RouteTable })},
	{"istio-inbound-ports", "b", nil, "inbound ports that are redirected; * is all, empty none", false, ports(func(b *flagBuild) *redirect.PortSet { return &b.Inbound.Ports })},
	{"istio-local-exclude-ports", "d", nil, "inbound ports that are not, when all are", false, ports(func(b *flagBuild) *redirect.PortSet { return &b.Inbound.ExcludePorts })},
	{"istio-service-cidr", "i", nil, "destinations that are redirected; * is all, empty none", false, prefixes(redirect.AllowAll, func(b *flagBuild) *redirect.PrefixSet { return &b.Outbound.CIDRs })},
	{"istio-service-exclude-cidr", "x", nil, "destinations that are not", false, prefixes(0, func(b *flagBuild) *redirect.PrefixSet { return &b.Outbound.ExcludeCIDRs })},
	{"istio-outbound-ports", "q", nil, "outbound ports that are redirected whatever the destination", false, ports(func(b *flagBuild) *redirect.PortSet { return &b.Outbound.Ports })},
	{"istio-local-outbound-ports-exclude", "o", nil, "outbound ports that are not", false, ports(func(b *flagBuild) *redirect.PortSet { return &b.Outbound.ExcludePorts })},
	{"kube-virt-interfaces", "k", nil, "interfaces of virtual machines, whose inbound traffic counts as outbound", false, interfaces(func(b *flagBuild) *[]string { return &b.VirtualInterfaces })},
	{"istio-exclude-interfaces", "c", nil, "interfaces that are left alone", false, interfaces(func(b *flagBuild) *[]string { return &b.ExcludeInterfaces })},
	{"istio-outbound-owner-groups", "", nil, "groups (numeric) whose outbound traffic is redirected; * is all", false, setOwnerGroups},
	{"istio-outbound-owner-groups-exclude", "", nil, "groups (numeric) whose is not", false, ids(func(b *flagBuild) *[]uint32 { return &b.Outbound.ExcludeOwnerGroups })},
	{"istio-outbound-ipv4-loopback-cidr", "", nil, "fixed to 127.0.0.1/32", false, fixedLoopback},
	{"redirect-dns", "", []string{"ISTIO_META_DNS_CAPTURE"}, "redirect look-ups to the servers in /etc/resolv.conf", true, boolean(func(b *flagBuild) *bool { return &b.redirectDNS })},
	{"capture-all-dns", "", nil, "with --redirect-dns: to all servers", true, boolean(func(b *flagBuild) *bool { return &b.captureAllDNS })},
	{"drop-invalid", "", []string{"INVALID_DROP"}, "drop packets that conntrack holds invalid", true, boolean(func(b *flagBuild) *bool { return &b.DropInvalid })},
	{"dual-stack", "", []string{"ISTIO_DUAL_STACK", "ISTIO_AGENT_DUAL_STACK"}, "capture IPv6 even if the pod's first address is IPv4", true, boolean(func(b *flagBuild) *bool { return &b.dualStack })},
	{"iptables-probe-port", "", nil, "port of validation's trial connections", false, port(func(b *flagBuild) *uint16 { return &b.probePort })},
	{"probe-timeout", "", nil, "how long validation may take; default 5s", false, setTimeout},
	{"dry-run", "n", nil, "print the rules and change nothing", true, boolean(func(b *flagBuild) *bool { return &b.dryRun })},
	{"skip-rule-apply", "", nil, "do not apply the rules", true, boolean(func(b *flagBuild) *bool { return &b.skipApply })},
	{"run-validation", "", nil, "validate afterwards", true, boolean(func(b *flagBuild) *bool { return &b.runValidation })},
}

// actionFlags say what to do, not what the rules are; they go with -f, too.
var actionFlags = []string{"dry-run", "skip-rule-apply", "run-validation", "iptables-probe-port", "probe-timeout"}

// ruleFlagGroup are the flags of one command.
type ruleFlagGroup struct{ set *pflag.FlagSet }

func addRuleFlags(fs *pflag.FlagSet) ruleFlagGroup {
	for _, f := range ruleFlags {
		if f.bool {
			fs.BoolP(f.name, f.short, false, f.usage)
		} else {
			fs.StringP(f.name, f.short, "", f.usage)
		}
	}
	return ruleFlagGroup{fs}
}

// value returns what was said of a flag, and where.
func (g ruleFlagGroup) value(f ruleFlag, i IO) (value, where string, ok bool) {
	if flag := g.set.Lookup(f.name); flag.Changed {
		where = "--" + f.name
		if f.short != "" {
			where = "-" + f.short + " (" + where + ")"
		}
		return flag.Value.String(), where, true
	}
	for _, name := range append([]string{strings.ToUpper(strings.ReplaceAll(f.name, "-", "_"))}, f.env...) {
		// A Service called envoy makes the kubelet set ENVOY_PORT=tcp://10.96.0.7:80 in every container.
		if v, ok := i.lookup(name); ok && (v != "" || !f.bool) && !strings.Contains(v, "://") {
			return v, "variable " + name, true
		}
	}
	return "", "", false
}

// build reads the flags over base, which it leaves as it is. Everything that is
// wrong is in the error. Only says which flags to read, nil all.
func (g ruleFlagGroup) build(base redirect.Redirect, i IO, only []string) (flagBuild, []redirect.Origin, error) {
	b := flagBuild{Redirect: base.Clone()}
	var origins []redirect.Origin
	var errs []error
	said := map[string]bool{}
	for _, f := range ruleFlags {
		if only != nil && !slices.Contains(only, f.name) {
			continue
		}
		value, where, ok := g.value(f, i)
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
		errs = append(errs, b.finish(i))
	}
	if err := errors.Join(errs...); err != nil {
		return b, nil, usageError{err}
	}
	return b, origins, nil
}

const flagSource redirect.Source = "flag"

// given lists the flags on the command line that say what the rules are.
func (g ruleFlagGroup) given() []string {
	var names []string
	for _, f := range ruleFlags {
		if g.set.Lookup(f.name).Changed && !slices.Contains(actionFlags, f.name) {
			names = append(names, "--"+f.name)
		}
	}
	return names
}

// finish settles what depends on several flags.
func (b *flagBuild) finish(i IO) error {
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
		servers, warnings, err := i.nameservers()
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
func (i IO) nameservers() (servers []netip.Prefix, warnings []string, err error) {
	b, err := i.ReadFile(resolvConf)
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

func port(field func(*flagBuild) *uint16) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) (err error) {
		*field(b), err = redirect.ParsePort(value, redirect.AllowZero)
		return err
	}
}

func number(field func(*flagBuild) *uint32) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) error {
		n, err := strconv.ParseUint(value, 0, 32)
		if err != nil {
			return errors.New("not a number from 0 to 4294967295")
		}
		*field(b) = uint32(n)
		return nil
	}
}

func ports(field func(*flagBuild) *redirect.PortSet) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) (err error) {
		*field(b), err = redirect.ParsePorts(value, redirect.AllowAll)
		return err
	}
}

func prefixes(g redirect.Grammar, field func(*flagBuild) *redirect.PrefixSet) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) (err error) {
		*field(b), err = redirect.ParsePrefixes(value, g)
		return err
	}
}

func interfaces(field func(*flagBuild) *[]string) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) (err error) {
		*field(b), err = redirect.ParseInterfaces(value)
		return err
	}
}

func ids(field func(*flagBuild) *[]uint32) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) (err error) {
		*field(b), err = redirect.ParseIDs(value)
		return err
	}
}

func boolean(field func(*flagBuild) *bool) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) error {
		on, err := strconv.ParseBool(value)
		if err != nil {
			return errors.New("not a boolean")
		}
		*field(b) = on
		return nil
	}
}

func setTimeout(b *flagBuild, value string) error {
	d, err := time.ParseDuration(value)
	if err != nil || d <= 0 {
		return errors.New("not a duration such as 5s")
	}
	b.probeTimeout = d
	return nil
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

func setMode(b *flagBuild, value string) error {
	m := redirect.Mode(value)
	if m != redirect.ModeRedirect && m != redirect.ModeTProxy {
		return errors.New("not REDIRECT or TPROXY")
	}
	b.Mode = m
	return nil
}

func setOwnerGroups(b *flagBuild, value string) error {
	if strings.TrimSpace(value) == "*" {
		b.Outbound.OwnerGroups = nil
		return nil
	}
	return ids(func(b *flagBuild) *[]uint32 { return &b.Outbound.OwnerGroups })(b, value)
}

// fixedLoopback refuses what would be silently not done.
func fixedLoopback(_ *flagBuild, value string) error {
	if p, err := netip.ParsePrefix(value); err == nil && p == netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), 32) {
		return nil
	}
	return errors.New("only 127.0.0.1/32 is supported: include or exclude other loopback ranges with -i and -x")
}
