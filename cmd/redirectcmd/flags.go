package redirectcmd

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshcni/meshcni/cmd/internal/cli"
	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/facts/istiofacts"
	"github.com/meshcni/meshcni/redirect"
	"github.com/meshcni/meshcni/redirect/ruleset"
)

// ruleFlag is a flag of Istio's init-container program (tools/istio-iptables, pilot-agent istio-iptables). Scripts and
// pod templates rely on its letters, names and variables. A flag that is not given leaves the mesh's default, which
// captures; an empty one means none. (In that program both capture nothing; see asIstio.) As there, a flag that sets
// what is captured drops the default exclusions.
type ruleFlag struct {
	name, short string
	kind        string
	usage       string
	set         func(b *flagBuild, value string) error
}

// flagBuild holds the parsed flags: the Redirect, and what finish adds to it once all flags are read.
type flagBuild struct {
	redirect.Redirect
	p                                            Program
	users                                        string // what was said of the proxy's users
	gidsSet                                      bool
	redirectDNS, captureAllDNS                   bool
	probePort                                    uint16
	probeTimeout                                 time.Duration
	runValidation, skipApply, dryRun, removeOnly bool
	backend                                      ruleset.Backend
	warnings                                     []string
}

// The kinds of flags.
const (
	text = "string"
	flag = "bool"
	list = "list" // a text of elements that are separated by commas
)

// ruleFlags are Istio's, with what this program finds in its environment: users, groups and servers. Then those that define no rules.
var ruleFlags = func() (all []ruleFlag) {
	own := map[string]func(*flagBuild, string) error{
		"proxy-uid": setUIDs, "proxy-gid": setGIDs, "istio-outbound-owner-groups": setOwnerGroups, "istio-outbound-owner-groups-exclude": setExcludeOwnerGroups,
		"redirect-dns":    into(parseBool, func(b *flagBuild) *bool { return &b.redirectDNS }),
		"capture-all-dns": into(parseBool, func(b *flagBuild) *bool { return &b.captureAllDNS }),
	}
	for _, f := range istiofacts.Flags() {
		r := ruleFlag{f.Name, f.Short, text, f.Usage, own[f.Name]}
		switch {
		case f.Bool:
			r.kind = flag
		case f.List:
			r.kind = list
		}
		if r.set == nil {
			r.set = func(b *flagBuild, value string) error { return f.Apply(&b.Redirect, value) }
		}
		ruleVariables[f.Name] = f.Variables[1:]
		for _, other := range f.Also {
			otherNames[other] = f.Name
		}
		all = append(all, r)
	}
	return append(all,
		ruleFlag{"iptables-probe-port", "", text, "port of validation's trial connections", into(parsePort, func(b *flagBuild) *uint16 { return &b.probePort })},
		ruleFlag{"probe-timeout", "", text, "how long validation may take; default 5s", into(parseTimeout, func(b *flagBuild) *time.Duration { return &b.probeTimeout })},
		ruleFlag{"dry-run", "n", flag, "print the rules and change nothing", into(parseBool, func(b *flagBuild) *bool { return &b.dryRun })},
		ruleFlag{"skip-rule-apply", "", flag, "do not apply the rules", into(parseBool, func(b *flagBuild) *bool { return &b.skipApply })},
		ruleFlag{"run-validation", "", flag, "validate afterwards", into(parseBool, func(b *flagBuild) *bool { return &b.runValidation })},
	)
}()

// ruleVariables are further variables of rule flags, and otherNames further names.
var (
	ruleVariables = map[string][]string{"iptables-probe-port": {"NFTABLES_PROBE_PORT"}}
	otherNames    = map[string]string{"nftables-probe-port": "iptables-probe-port", "nftables-trace-logging": "iptables-trace-logging"}
)

func usualName(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	return pflag.NormalizedName(cmp.Or(otherNames[name], name))
}

// actionFlags do not define rules, so they are allowed with -f.
var actionFlags = []string{"dry-run", "skip-rule-apply", "run-validation", "iptables-probe-port", "probe-timeout"}

// addRuleFlags declares the rule flags and returns them. build parses their
// values, so that it can report every bad one.
func addRuleFlags(fs *pflag.FlagSet) *pflag.FlagSet {
	fs.SetNormalizeFunc(usualName)
	return addFlags(fs, "In place of -f, as Istio's init-container program has them", ruleFlags, ruleVariables)
}

// addFlags declares flags as a group, with their variables and others.
func addFlags(fs *pflag.FlagSet, title string, flags []ruleFlag, also map[string][]string) *pflag.FlagSet {
	group := pflag.NewFlagSet("", pflag.ContinueOnError)
	cli.Group(group, title, func(fs *pflag.FlagSet) {
		for _, f := range flags {
			if f.kind == flag {
				fs.BoolP(f.name, f.short, false, f.usage)
			} else {
				fs.StringP(f.name, f.short, "", f.usage)
			}
		}
	})
	cli.BindEnv(group, "", also)
	cli.Alone(group) // as in Istio's program, which overlooks the word after one: --redirect-dns false switches it on
	fs.AddFlagSet(group)
	return group
}

// said returns the value of a flag and its origin: the command line, or else the
// environment, where an empty variable counts unless the flag is boolean.
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

// build applies the flags named by only, nil for all, to a copy of base. The error lists every bad value.
func (c *common) build(base redirect.Redirect, only []string) (flagBuild, []redirect.Origin, error) {
	b := flagBuild{Redirect: base.Clone(), p: c.Program, backend: c.backend}
	var origins []redirect.Origin
	var errs []error
	said := map[string]bool{}
	for _, f := range append(slices.Clip(ruleFlags), c.istioFlags...) {
		given := c.ruleFlags.Lookup(f.name)
		value, where, ok := c.said(given)
		if !ok || only != nil && !slices.Contains(only, f.name) {
			continue
		}
		if c.istioFlags != nil && f.kind == list {
			value = withoutEmpty(value)
		}
		said[f.name] = true
		if err := f.set(&b, value); err != nil {
			if c.istioFlags != nil && f.kind == flag && !given.Changed {
				b.warnings = append(b.warnings, fmt.Sprintf("%s=%q: %v, and counts as unset", where, value, err))
				continue
			}
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
		errs = append(errs, b.finish(c.istioFlags != nil))
	}
	return b, origins, cli.Usage(errors.Join(errs...))
}

const flagSource redirect.Source = "flag"

// givenRules lists the flags on the command line that define rules.
func (c *common) givenRules() (names []string) {
	for _, f := range ruleFlags {
		if c.ruleFlags.Lookup(f.name).Changed && !slices.Contains(actionFlags, f.name) {
			names = append(names, "--"+f.name)
		}
	}
	return names
}

// finish sets what depends on several flags.
func (b *flagBuild) finish(asIstio bool) error {
	if err := b.proxyUsers(asIstio); err != nil {
		return err
	}
	switch {
	case b.redirectDNS && b.captureAllDNS:
		b.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: istio.DNSPort}
	case b.redirectDNS:
		servers, warnings, err := b.p.nameservers()
		b.warnings = append(b.warnings, warnings...)
		switch {
		case asIstio && errors.Is(err, errNoServer):
			b.warnings = append(b.warnings, fmt.Sprintf("no DNS query is captured: %v, and --capture-all-dns is not given", err))
			return nil
		case err != nil:
			return fmt.Errorf("--redirect-dns without --capture-all-dns: %w", err)
		}
		b.DNS = redirect.DNS{Servers: redirect.Prefixes(servers...), Port: istio.DNSPort}
	case b.captureAllDNS:
		b.warnings = append(b.warnings, "--capture-all-dns does nothing without --redirect-dns")
	}
	return nil
}

const resolvConf = "/etc/resolv.conf"

var errNoServer = errors.New(resolvConf + " names no server")

// nameservers reads the resolvers of the pod in which this program runs (resolv.conf(5)).
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
		servers = append(servers, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
	}
	if len(servers) == 0 {
		return nil, warnings, errNoServer
	}
	return servers, warnings, nil
}

// into makes a function that parses a value into a field.
func into[T any](parse func(string) (T, error), field func(*flagBuild) *T) func(*flagBuild, string) error {
	return func(b *flagBuild, value string) error {
		v, err := parse(value)
		if err == nil {
			*field(b) = v
		}
		return err
	}
}

func parsePort(value string) (uint16, error) {
	return redirect.ParsePort(value, redirect.Grammar{Zero: true})
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
