package istiofacts_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"

	"github.com/meshcni/meshcni/dialect/istio"
	"github.com/meshcni/meshcni/internal/facts/istiofacts"
	"github.com/meshcni/meshcni/mesh"
	"github.com/meshcni/meshcni/redirect"
)

// injected is what an injector of Istio gives its init container, with the rules that this asks for.
type injected struct {
	args, env []string
	want      func(r *redirect.Redirect) // from what captures nothing
	failure   string                     // instead
}

// nothing is what Istio's program writes without arguments.
func nothing() redirect.Redirect {
	r := istio.DefaultRedirect()
	r.Inbound, r.Outbound = redirect.Inbound{Ports: redirect.NoPorts()}, redirect.Outbound{CIDRs: redirect.NoPrefixes()}
	return r
}

func everything(r *redirect.Redirect) {
	r.Inbound.Ports, r.Inbound.ExcludePorts = redirect.AllPorts(), redirect.Ports(15020, 15021, 15090)
	r.Outbound.CIDRs = redirect.AllPrefixes()
}

func also(changes ...func(*redirect.Redirect)) func(*redirect.Redirect) {
	return func(r *redirect.Redirect) {
		everything(r)
		for _, c := range changes {
			c(r)
		}
	}
}

func prefixSet(list ...string) redirect.PrefixSet {
	var all []netip.Prefix
	for _, p := range list {
		all = append(all, netip.MustParsePrefix(p))
	}
	return redirect.Prefixes(all...)
}

// template makes the arguments as the injection templates do: the same ones in the same order since 1.10, with more at the end.
func template(changes map[string]string, more ...string) []string {
	args := []string{"-p", "15001", "-z", "15006", "-u", "1337", "-m", "REDIRECT", "-i", "*", "-x", "", "-b", "*", "-d", "15090,15021,15020"}
	for flag, value := range changes {
		if i := slices.Index(args, flag); i >= 0 {
			args[i+1] = value
		} else {
			args = append(args, flag, value)
		}
	}
	return append(args, more...)
}

const level = "--log_output_level=default:info" // since 1.12

var allDNS = func(r *redirect.Redirect) { r.DNS = redirect.DNS{Servers: redirect.AllPrefixes(), Port: 15053} }

// lists are by the files/injection-template.yaml of Istio's chart: its branches, and the settings that they write out.
var lists = map[string]injected{
	"1.10":                             {args: template(nil), want: everything},
	"1.12":                             {args: template(nil, level), want: everything},
	"log as JSON":                      {args: template(nil, level, "--log_as_json"), want: everything},
	"log of a pod":                     {args: template(nil, "--log_output_level=iptables:debug,all:warn"), want: everything},
	"no port of the agent, up to 1.11": {args: template(map[string]string{"-d": "15090,15021,"}), want: also(func(r *redirect.Redirect) { r.Inbound.ExcludePorts = redirect.Ports(15021, 15090) })},
	"no port of the agent":             {args: template(map[string]string{"-d": "15090,15021"}, level), want: also(func(r *redirect.Redirect) { r.Inbound.ExcludePorts = redirect.Ports(15021, 15090) })},
	"excluded ports": {args: template(map[string]string{"-d": "15090,15021,9090,15020", "-o": "3306,6379"}, level), want: also(func(r *redirect.Redirect) {
		r.Inbound.ExcludePorts, r.Outbound.ExcludePorts = redirect.Ports(9090, 15020, 15021, 15090), redirect.Ports(3306, 6379)
	})},
	"lists with commas too many": {args: template(map[string]string{"-d": ",15090,,15021,15020,", "-o": "3306,", "-q": "25,", "-x": "10.9.0.0/16,", "-c": "net1,", "-k": "virt0,", "-u": "1337,"}), want: also(func(r *redirect.Redirect) {
		r.Outbound.ExcludePorts, r.Outbound.Ports, r.Outbound.ExcludeCIDRs = redirect.Ports(3306), redirect.Ports(25), prefixSet("10.9.0.0/16")
		r.ExcludeInterfaces, r.VirtualInterfaces = []string{"net1"}, []string{"virt0"}
	})},
	"ranges of both families": {args: template(map[string]string{"-i": "10.96.0.0/12,fd00:96::/112", "-x": "10.96.0.1/32"}, level), want: also(func(r *redirect.Redirect) {
		r.Outbound.CIDRs, r.Outbound.ExcludeCIDRs = prefixSet("10.96.0.0/12", "fd00:96::/112"), prefixSet("10.96.0.1/32")
	})},
	"outbound ports": {args: template(map[string]string{"-i": "", "-q": "3306"}, level), want: also(func(r *redirect.Redirect) {
		r.Outbound.CIDRs, r.Outbound.Ports = redirect.NoPrefixes(), redirect.Ports(3306)
	})},
	"no outbound ports": {args: template(map[string]string{"-q": "", "-o": ""}, level), want: everything},
	"no inbound":        {args: template(map[string]string{"-b": ""}, level), want: also(func(r *redirect.Redirect) { r.Inbound.Ports = redirect.NoPorts() })},
	"some inbound":      {args: template(map[string]string{"-b": "8080,9000"}, level), want: also(func(r *redirect.Redirect) { r.Inbound.Ports = redirect.Ports(8080, 9000) })},
	"interfaces": {args: template(map[string]string{"-k": "virt0,virt1", "-c": "net1"}, level), want: also(func(r *redirect.Redirect) {
		r.VirtualInterfaces, r.ExcludeInterfaces = []string{"virt0", "virt1"}, []string{"net1"}
	})},
	"TPROXY":             {args: template(map[string]string{"-m": "TPROXY"}, level), want: also(func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy })},
	"another listener":   {args: template(map[string]string{"-p": "16001", "-z": "16006"}, level), want: also(func(r *redirect.Redirect) { r.Proxy.OutboundPort, r.Proxy.InboundPort = 16001, 16006 })},
	"OpenShift":          {args: template(map[string]string{"-u": "1000720001"}, level), want: also(func(r *redirect.Redirect) { r.Proxy.UIDs, r.Proxy.GIDs = []uint32{1000720001}, []uint32{1000720001} })},
	"nftables":           {args: template(nil, level, "--native-nftables"), want: everything},
	"applied by force":   {args: template(nil, level, "--force-apply", "--native-nftables"), want: everything},
	"DNS":                {args: template(nil, level), env: []string{"ISTIO_META_DNS_CAPTURE=true", "ISTIO_META_DNS_AUTO_ALLOCATE=true"}, failure: "the other container"},
	"all DNS":            {args: template(nil, level), env: []string{"ISTIO_META_DNS_CAPTURE=true", "CAPTURE_ALL_DNS=true"}, want: also(allDNS)},
	"DNS off":            {args: template(nil, level), env: []string{"ISTIO_META_DNS_CAPTURE=false"}, want: everything},
	"DNS misspelt":       {args: template(nil, level), env: []string{"ISTIO_META_DNS_CAPTURE=yes please"}, want: everything},
	"dual stack":         {args: template(nil, level), env: []string{"ISTIO_DUAL_STACK=true"}, want: also(func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyCapture })},
	"dual stack of 1.17": {args: template(nil, level), env: []string{"ISTIO_AGENT_DUAL_STACK=true"}, want: also(func(r *redirect.Redirect) { r.IPv6 = redirect.FamilyCapture })},
	"INVALID":            {args: template(nil, level), env: []string{"INVALID_DROP=true"}, want: also(func(r *redirect.Redirect) { r.DropInvalid = true })},
	"traced":             {args: template(nil, level), env: []string{"IPTABLES_TRACE_LOGGING=true"}, want: everything},
	"localhost":          {args: template(nil, level), env: []string{"ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR=127.0.0.1/8"}, want: also(func(r *redirect.Redirect) { r.Localhost = netip.MustParsePrefix("127.0.0.1/8") })},
	"owner groups":       {args: template(nil, level), env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS=101,102,"}, want: also(func(r *redirect.Redirect) { r.Outbound.OwnerGroups = []uint32{101, 102} })},
	"no owner groups":    {args: template(nil, level), env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS=*", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE=7"}, want: also(func(r *redirect.Redirect) { r.Outbound.ExcludeOwnerGroups = []uint32{7} })},
	"a proxy's names":    {args: template(map[string]string{"-u": "istio-proxy", "-g": "istio-proxy"}, level), want: everything},
	"no arguments":       {args: []string{}, want: func(*redirect.Redirect) {}},
	"empty ones":         {args: template(map[string]string{"-i": "", "-b": "", "-d": "", "-m": "", "-u": ""}), want: func(*redirect.Redirect) {}},
	"variables alone":    {env: []string{"ISTIO_INBOUND_PORTS=*", "ISTIO_SERVICE_CIDR=*", "ISTIO_LOCAL_EXCLUDE_PORTS=15090,15021,15020", "ISTIO_INBOUND_TPROXY_MARK=1400", "ISTIO_INBOUND_TPROXY_ROUTE_TABLE=140"}, want: also(func(r *redirect.Redirect) { r.Names.InboundMark, r.Names.RouteTable = 1400, 140 })},
	"marks": {args: template(nil, "--istio-inbound-tproxy-mark", "1400", "--istio-inbound-tproxy-route-table=140", "--nftables-probe-port", "15003"), want: also(func(r *redirect.Redirect) {
		r.Names.InboundMark, r.Names.RouteTable = 1400, 140
	})},
	"all that have no effect": {args: template(nil, "--cni-mode", "--host-nsenter-exec", "--iptables-trace-logging", "-f", "--restore-format=false", "--force-apply", "--reconcile", "--iptables-version", "1.8.7", "--output-paths", "/tmp/x",
		"--log_caller", "x", "--log_rotate", "x", "--log_rotate_max_age", "1", "--log_rotate_max_backups", "1", "--log_rotate_max_size=1", "--log_stacktrace_level", "default:none", "--log_target", "stdout", "--vklog=9"), want: everything},

	"a validating container":              {args: template(nil, level, "--run-validation", "--skip-rule-apply"), failure: "it writes no rules"},
	"in another namespace":                {args: template(nil, "--network-namespace", "/proc/1/ns/net"), failure: "elsewhere"},
	"unknown":                             {args: template(nil, "--shiny"), failure: "not defined: -shiny"},
	"another user":                        {args: template(map[string]string{"-u": "envoy"}), failure: `"envoy" is no number`},
	"another user, named by its variable": {args: slices.DeleteFunc(template(nil), func(s string) bool { return s == "-u" || s == "1337" }), env: []string{"ENVOY_USER=envoy"}, failure: `ENVOY_USER="envoy"`},
}

// TestInjectors: what each injector asks for is what it gets.
func TestInjectors(t *testing.T) {
	t.Parallel()
	for name, tt := range lists {
		c := corev1.Container{Args: tt.args}
		for _, e := range tt.env {
			name, value, _ := strings.Cut(e, "=")
			c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value})
		}
		d := istio.New()
		got, err := istiofacts.New().Init.Read(&d, mesh.InitContainer{Pod: &corev1.Pod{}, Container: &c, Ours: istio.DefaultRedirect()})
		if tt.failure != "" {
			assert.ErrorContains(t, err, tt.failure, name)
			continue
		}
		require.NoError(t, err, name)
		want := nothing()
		tt.want(&want)
		assert.Equal(t, want.MustRuleset().String(), got.MustRuleset().String(), name)
	}
}
