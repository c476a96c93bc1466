package istiofacts

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// User is the name in Istio's image of the proxy's user and its group, which both have the number [istio.ProxyID], and UserVariable names
// the variable that has another.
const (
	User         = "istio-proxy"
	UserVariable = "ENVOY_USER"
)

// Flags are those of Istio's init-container program (tools/istio-iptables, pilot-agent istio-iptables) that say what the rules are. Scripts
// and pod templates rely on its letters, names and variables. Each has a variable of its name, in capitals, and some have others.
func Flags() []mesh.Flag {
	flags := []mesh.Flag{
		{Name: "envoy-port", Short: "p", Usage: "port to which outbound connections are redirected", Field: "proxy.outboundPort", Grammar: redirect.Grammar{Zero: true}},
		{Name: "inbound-capture-port", Short: "z", Usage: "port to which inbound connections are redirected", Field: "proxy.inboundPort", Grammar: redirect.Grammar{Zero: true}},
		{Name: "inbound-tunnel-port", Short: "e", Usage: "the proxy's tunnel port, never redirected", Field: "proxy.tunnelPort", Grammar: redirect.Grammar{Zero: true}},
		{Name: "proxy-uid", Short: "u", List: true, Usage: "users of the proxy, by number or name, whose traffic is not redirected", Set: ids(func(r *redirect.Redirect) *[]uint32 { return &r.Proxy.UIDs })},
		{Name: "proxy-gid", Short: "g", List: true, Usage: "groups of the proxy, by number or name; default, the same as the users where the mesh goes by groups too", Set: ids(func(r *redirect.Redirect) *[]uint32 { return &r.Proxy.GIDs })},
		{Name: "istio-inbound-interception-mode", Short: "m", Usage: "REDIRECT or TPROXY", Set: setMode},
		{Name: "inbound-tproxy-mark", Short: "t", Also: []string{"istio-inbound-tproxy-mark"}, Variables: []string{"ISTIO_INBOUND_TPROXY_MARK"}, Usage: "mark of packets on their way to a transparent listener", Set: number(func(r *redirect.Redirect) *uint32 { return &r.Names.InboundMark })},
		{Name: "inbound-tproxy-route-table", Short: "r", Also: []string{"istio-inbound-tproxy-route-table"}, Variables: []string{"ISTIO_INBOUND_TPROXY_ROUTE_TABLE"}, Usage: "route table that keeps marked packets local", Set: number(func(r *redirect.Redirect) *uint32 { return &r.Names.RouteTable })},
		{Name: "istio-inbound-ports", Short: "b", List: true, Usage: "inbound ports that are redirected; * is all, empty none", Field: "inbound.ports", Grammar: redirect.Grammar{All: true}},
		{Name: "istio-local-exclude-ports", Short: "d", List: true, Usage: "inbound ports that are not, when all are", Field: "inbound.excludePorts", Grammar: redirect.Grammar{All: true}},
		{Name: "istio-service-cidr", Short: "i", List: true, Usage: "destinations that are redirected; * is all, empty none", Field: "outbound.cidrs", Grammar: redirect.Grammar{All: true}},
		{Name: "istio-service-exclude-cidr", Short: "x", List: true, Usage: "destinations that are not", Field: "outbound.excludeCIDRs"},
		{Name: "istio-outbound-ports", Short: "q", List: true, Usage: "outbound ports that are redirected whatever the destination", Field: "outbound.ports", Grammar: redirect.Grammar{All: true}},
		{Name: "istio-local-outbound-ports-exclude", Short: "o", List: true, Usage: "outbound ports that are not", Field: "outbound.excludePorts", Grammar: redirect.Grammar{All: true}},
		{Name: "kube-virt-interfaces", Short: "k", List: true, Usage: "interfaces of virtual machines, whose inbound traffic counts as outbound", Field: "virtualInterfaces"},
		{Name: "istio-exclude-interfaces", Short: "c", List: true, Usage: "interfaces that are left alone", Field: "excludeInterfaces"},
		{Name: "istio-outbound-owner-groups", List: true, Usage: "groups whose outbound traffic is redirected; * is all", Set: ids(func(r *redirect.Redirect) *[]uint32 { return &r.Outbound.OwnerGroups })},
		{Name: "istio-outbound-owner-groups-exclude", List: true, Usage: "groups whose is not", Set: ids(func(r *redirect.Redirect) *[]uint32 { return &r.Outbound.ExcludeOwnerGroups })},
		{Name: "host-ipv4-loopback-cidr", Also: []string{"istio-outbound-ipv4-loopback-cidr"}, Variables: []string{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR"}, Usage: "the part of 127.0.0.0/8 that counts as localhost, and is left alone; default 127.0.0.1/32", Set: setLocalhost},
		{Name: "redirect-dns", Bool: true, Variables: []string{"ISTIO_META_DNS_CAPTURE"}, Usage: "redirect look-ups to the servers in /etc/resolv.conf"},
		{Name: "capture-all-dns", Bool: true, Usage: "with --redirect-dns: to all servers"},
		{Name: "drop-invalid", Bool: true, Variables: []string{"INVALID_DROP"}, Usage: "drop packets that conntrack holds invalid", Field: "dropInvalid"},
		{Name: "dual-stack", Bool: true, Variables: []string{"ISTIO_DUAL_STACK", "ISTIO_AGENT_DUAL_STACK"}, Usage: "capture IPv6 even if the pod's first address is IPv4", Set: redirect.Bool(func(r *redirect.Redirect, on bool) {
			if on {
				r.IPv6 = redirect.FamilyCapture
			}
		})},
	}
	for i, f := range flags {
		flags[i].Variables = append([]string{strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))}, f.Variables...)
	}
	return flags
}

// others are the program's other flags. Most change no rule.
var others = func() []mesh.Flag {
	flags := []mesh.Flag{
		{Name: "dry-run", Short: "n", Bool: true, Variables: []string{"DRY_RUN"}, Refused: "writes no rules"},
		{Name: "skip-rule-apply", Bool: true, Variables: []string{"SKIP_RULE_APPLY"}, Refused: "writes no rules"},
		{Name: "cleanup-only", Bool: true, Variables: []string{"CLEANUP_ONLY"}, Refused: "writes no rules"},
		{Name: "network-namespace", Refused: "writes the rules elsewhere"},
		{Name: "restore-format", Short: "f", Bool: true}, {Name: "iptables-probe-port", Also: []string{"nftables-probe-port"}},
		{Name: "iptables-trace-logging", Also: []string{"nftables-trace-logging"}, Bool: true},
	}
	for name := range strings.FieldsSeq("run-validation native-nftables force-legacy-iptables cni-mode force-apply host-nsenter-exec reconcile log_as_json") {
		flags = append(flags, mesh.Flag{Name: name, Bool: true})
	}
	for name := range strings.FieldsSeq("probe-timeout force-iptables-binary iptables-version output-paths log_output_level log_caller log_rotate log_rotate_max_age log_rotate_max_backups log_rotate_max_size log_stacktrace_level log_target vklog") {
		flags = append(flags, mesh.Flag{Name: name})
	}
	return flags
}()

// ids makes a function that parses a list of users or groups. Of names only the proxy's own is known; an empty list leaves what is there.
func ids(field func(*redirect.Redirect) *[]uint32) func(*redirect.Redirect, string) error {
	return func(r *redirect.Redirect, value string) error {
		if value = strings.TrimSpace(value); value == "" || value == "*" {
			return nil
		}
		names := strings.Split(value, ",")
		for i, name := range names {
			if names[i] = strings.TrimSpace(name); names[i] == User {
				names[i] = strconv.Itoa(istio.ProxyID)
			} else if strings.Trim(names[i], "0123456789") != "" {
				return fmt.Errorf("%q is no number: whose it is, a file of the other container says", names[i])
			}
		}
		list, err := redirect.ParseIDs(strings.Join(names, ","))
		if err == nil {
			*field(r) = list
		}
		return err
	}
}

func number(field func(*redirect.Redirect) *uint32) func(*redirect.Redirect, string) error {
	return func(r *redirect.Redirect, value string) error {
		n, err := strconv.ParseUint(value, 0, 32)
		if err != nil {
			return errors.New("not a number from 0 to 4294967295")
		}
		*field(r) = uint32(n)
		return nil
	}
}

func setMode(r *redirect.Redirect, value string) error {
	m := redirect.Mode(cmp.Or(value, string(redirect.ModeRedirect)))
	if m != redirect.ModeRedirect && m != redirect.ModeTProxy {
		return errors.New("not REDIRECT or TPROXY")
	}
	r.Mode = m
	return nil
}

func setLocalhost(r *redirect.Redirect, value string) error {
	p, err := redirect.ParsePrefix(value, redirect.Grammar{})
	if err == nil && (!p.Addr().Is4() || !p.Addr().IsLoopback() || p.Bits() < 8) {
		err = errors.New("not a range of 127.0.0.0/8")
	}
	if err == nil {
		r.Localhost = p
	}
	return err
}

// Nothing returns a Redirect as the program has it without flags: it captures nothing.
func Nothing(r redirect.Redirect) redirect.Redirect {
	r.Inbound, r.Outbound = redirect.Inbound{Ports: redirect.NoPorts()}, redirect.Outbound{CIDRs: redirect.NoPrefixes()}
	return r
}

// written returns the rules that the program writes. Which families have some, the pod's addresses say.
func written(c mesh.InitContainer) (redirect.Redirect, error) {
	r := Nothing(istio.DefaultRedirect())
	r.IPv4, r.IPv6 = c.Ours.IPv4, c.Ours.IPv6
	if err := c.Apply(&r); err != nil {
		return r, err
	}
	users, _, err := c.Value("proxy-uid")
	name, _, verr := c.Variable(UserVariable)
	switch err := errors.Join(err, verr); {
	case err != nil:
		return r, err
	case users == "" && name != "" && name != User:
		return r, fmt.Errorf("variable %s=%q: its number is in a file of the other container", UserVariable, name)
	}
	if groups, _, err := c.Value("proxy-gid"); groups == "" {
		r.Proxy.GIDs = slices.Clone(r.Proxy.UIDs)
	} else if err != nil {
		return r, err
	}
	dns, _, err := c.Value("redirect-dns")
	all, _, aerr := c.Value("capture-all-dns")
	if err := errors.Join(err, aerr); err != nil || !isOn(dns) {
		return r, err
	}
	if !isOn(all) {
		return r, errors.New("--redirect-dns without --capture-all-dns: the servers are in a file of the other container")
	}
	r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: istio.DNSPort}
	return r, nil
}

// isOn reports whether a flag is on.
func isOn(value string) bool {
	on, err := strconv.ParseBool(strings.TrimSpace(value))
	return err == nil && on
}
