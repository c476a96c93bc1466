package redirectcmd_test

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/meshcni/meshcni/cmd/redirectcmd"
	"github.com/meshcni/meshcni/dialect/istio"
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
	r := istio.Defaults()
	r.Inbound, r.Outbound = redirect.Inbound{}, redirect.Outbound{}
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
		r.Outbound.CIDRs, r.Outbound.Ports = redirect.PrefixSet{}, redirect.Ports(3306)
	})},
	"no outbound ports": {args: template(map[string]string{"-q": "", "-o": ""}, level), want: everything},
	"no inbound":        {args: template(map[string]string{"-b": ""}, level), want: also(func(r *redirect.Redirect) { r.Inbound.Ports = redirect.PortSet{} })},
	"some inbound":      {args: template(map[string]string{"-b": "8080,9000"}, level), want: also(func(r *redirect.Redirect) { r.Inbound.Ports = redirect.Ports(8080, 9000) })},
	"interfaces": {args: template(map[string]string{"-k": "virt0,virt1", "-c": "net1"}, level), want: also(func(r *redirect.Redirect) {
		r.VirtualInterfaces, r.ExcludeInterfaces = []string{"virt0", "virt1"}, []string{"net1"}
	})},
	"TPROXY":             {args: template(map[string]string{"-m": "TPROXY"}, level), want: also(func(r *redirect.Redirect) { r.Mode = redirect.ModeTProxy })},
	"another listener":   {args: template(map[string]string{"-p": "16001", "-z": "16006"}, level), want: also(func(r *redirect.Redirect) { r.Proxy.OutboundPort, r.Proxy.InboundPort = 16001, 16006 })},
	"OpenShift":          {args: template(map[string]string{"-u": "1000720001"}, level), want: also(func(r *redirect.Redirect) { r.Proxy.UIDs, r.Proxy.GIDs = []uint32{1000720001}, []uint32{1000720001} })},
	"nftables":           {args: template(nil, level, "--native-nftables"), want: everything},
	"applied by force":   {args: template(nil, level, "--force-apply", "--native-nftables"), want: everything},
	"DNS":                {args: template(nil, level), env: []string{"ISTIO_META_DNS_CAPTURE=true", "ISTIO_META_DNS_AUTO_ALLOCATE=true"}, failure: "another container"},
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
	"unknown":                             {args: template(nil, "--shiny"), failure: "unknown flag: --shiny"},
	"another user":                        {args: template(map[string]string{"-u": "envoy"}), failure: `"envoy" is no number`},
	"another user, named by its variable": {args: slices.DeleteFunc(template(nil), func(s string) bool { return s == "-u" || s == "1337" }), env: []string{"ENVOY_USER=envoy"}, failure: `ENVOY_USER="envoy"`},
}

// TestInjectors: what each injector asks for is what it gets.
func TestInjectors(t *testing.T) {
	t.Parallel()
	for name, tt := range lists {
		got, err := redirectcmd.InitContainer(istio.Defaults(), tt.args, call{env: tt.env}.lookup)
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

// TestIstioCommand is the command's contract beside the rules: what it says and refuses.
func TestIstioCommand(t *testing.T) {
	t.Parallel()
	accounts := map[string]string{
		"/etc/passwd": "root:x:0:0::/root:/bin/sh\nenvoy:x:101:102::/:/bin/false\nlone:x:500:500::/:\nbad:x:many:1::/:\n",
		"/etc/group":  "root:x:0:\nenvoy:x:102:\nstaff:x:50:a,b\n",
	}
	owner := func(uid, gid string) []string {
		return []string{"--uid-owner " + uid + " -j RETURN", "--gid-owner " + gid + " -j RETURN"}
	}
	for name, tt := range map[string]struct {
		args        []string
		env         []string
		files       map[string]string
		code        int
		out, errOut []string
		not         string // in neither
	}{
		"absent is none":           {not: "ISTIO_INBOUND"},
		"unknown flag":             {args: []string{"--frob"}, code: 2, errOut: []string{"unknown flag: --frob"}},
		"a flag of apply alone":    {args: []string{"--dialect", "istio"}, code: 2, errOut: []string{"unknown flag: --dialect"}},
		"stray argument":           {args: []string{"sidecar"}, code: 2, errOut: []string{`"sidecar"`}},
		"all bad values at once":   {args: []string{"-p", "x", "-b", "80-90", "-u", "nobody"}, code: 2, errOut: []string{`-p (--envoy-port)="x"`, `-b (--istio-inbound-ports)="80-90"`, `-u (--proxy-uid)="nobody": "nobody" is no number`, "/etc/passwd does not have the name"}},
		"a level that is none":     {args: []string{"--log_output_level=default:loud"}, code: 2, errOut: []string{`"loud" is not one of debug, info`}},
		"names":                    {args: []string{"-u", "envoy", "-g", "staff"}, files: accounts, out: owner("101", "50")},
		"names and numbers":        {args: []string{"-u", "1337,envoy", "-g", "0,staff"}, files: accounts, out: append(owner("101", "50"), "--uid-owner 1337", "--gid-owner 0 ")},
		"groups as users":          {args: []string{"-u", "envoy"}, files: accounts, out: owner("101", "102")},
		"groups as users, no name": {args: []string{"-u", "lone"}, files: accounts, out: owner("500", "500")},
		"a number that is none":    {args: []string{"-u", "bad"}, files: accounts, code: 2, errOut: []string{`"bad" is no number`}},
		"owner groups by name":     {env: []string{"ISTIO_OUTBOUND_OWNER_GROUPS=staff,7"}, files: accounts, out: []string{"! --gid-owner 50", "! --gid-owner 7"}},
		"the proxy's own name":     {args: []string{"-u", "istio-proxy"}, files: accounts, out: owner("1337", "1337")},
		"it is in the file":        {args: []string{"-u", "istio-proxy"}, files: map[string]string{"/etc/passwd": "istio-proxy:x:2000:2001::/:", "/etc/group": ""}, out: owner("2000", "2000")},
		"no user, in the file":     {files: map[string]string{"/etc/passwd": "istio-proxy:x:2000:2001::/:"}, out: owner("2000", "2000")},
		"no user":                  {files: accounts, out: owner("1337", "1337")},
		"no user, no files":        {out: owner("1337", "1337")},
		"no user, but a variable":  {env: []string{"ENVOY_USER=envoy"}, files: accounts, out: owner("101", "101")},
		"a variable of nobody":     {env: []string{"ENVOY_USER=nobody"}, files: accounts, out: owner("1337", "1337")},

		"DNS of no server":             {args: []string{"--redirect-dns"}, files: map[string]string{"/etc/resolv.conf": "search a\n"}, errOut: []string{"warning: no DNS query is captured: /etc/resolv.conf names no server"}, not: "15053"},
		"DNS of no usable one":         {args: []string{"--redirect-dns"}, files: map[string]string{"/etc/resolv.conf": "nameserver fe80::1%eth0\n"}, errOut: []string{"no address that a rule can name", "no DNS query is captured"}, not: "15053"},
		"DNS of one":                   {args: []string{"--redirect-dns"}, files: map[string]string{"/etc/resolv.conf": "nameserver 10.96.0.10\n"}, out: []string{"-d 10.96.0.10/32 -p udp -m udp --dport 53 -j REDIRECT --to-ports 15053"}},
		"DNS of who knows":             {args: []string{"--redirect-dns"}, code: 2, errOut: []string{"resolv.conf"}},
		"a variable's nonsense":        {env: []string{"DROP_INVALID=perhaps"}, errOut: []string{`variable DROP_INVALID="perhaps": not a boolean, and counts as unset`}, not: "INVALID -j DROP"},
		"a flag's nonsense":            {args: []string{"--drop-invalid=perhaps"}, code: 2, errOut: []string{"perhaps"}},
		"a variable that does nothing": {env: []string{"CNI_MODE=true", "RECONCILE=false"}, errOut: []string{"--cni-mode has no effect"}, not: "--reconcile"},
		"routes":                       {args: []string{"configure-routes", "-m", "TPROXY"}, out: []string{"fwmark 0x539 lookup 133", "table 133"}, not: "ISTIO_"},
		"routes, none needed":          {args: []string{"configure-routes"}, out: []string{"nothing to add"}},
		"routes, unknown flag":         {args: []string{"configure-routes", "--frob"}, code: 2, errOut: []string{"unknown flag: --frob"}},
		"cleanup":                      {args: []string{"--cleanup-only"}, out: []string{"would remove chains named ISTIO_*"}, not: "*nat"},
		"skipped":                      {args: []string{"--cleanup-only", "--skip-rule-apply"}, not: "would remove"},
		"binary that is none":          {args: []string{"--force-iptables-binary", "pf"}, code: 2, errOut: []string{`--force-iptables-binary="pf": not nft, legacy`}},
		"quiet":                        {args: []string{"--log_output_level=default:error", "--cni-mode"}, not: "ISTIO_"},
		"less quiet":                   {args: []string{"--log_output_level=warn", "--cni-mode"}, errOut: []string{"--cni-mode has no effect"}, not: "ISTIO_"},
		"of another scope":             {args: []string{"--log_output_level=dns:none,default:debug"}, out: []string{"*nat"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			files := tt.files
			if files == nil {
				files = map[string]string{}
			}
			got := call{env: append([]string{"DRY_RUN=true"}, tt.env...), files: files}.run(t, append([]string{redirectcmd.IstioCommand}, tt.args...)...)
			assert.Equal(t, tt.code, got.code, "%s%s", got.out, got.errOut)
			for _, part := range tt.out {
				assert.Contains(t, got.out, part)
			}
			for _, part := range tt.errOut {
				assert.Contains(t, got.errOut, part)
			}
			if tt.not != "" {
				assert.NotContains(t, got.out+got.errOut, tt.not)
			}
		})
	}
}

// TestIstioFlagsThatDoNothing: each is named, unless it is off.
func TestIstioFlagsThatDoNothing(t *testing.T) {
	t.Parallel()
	plain := call{}.run(t, redirectcmd.IstioCommand, "-n")
	require.Zero(t, plain.code)
	for _, f := range []string{
		"--cni-mode", "--host-nsenter-exec", "--iptables-trace-logging", "--nftables-trace-logging", "--restore-format", "--force-apply", "--reconcile", "--iptables-version=1.8.9",
		"--output-paths=/tmp/x", "--log_caller=all", "--log_rotate=/x", "--log_rotate_max_age=2", "--log_rotate_max_backups=3", "--log_rotate_max_size=4",
		"--log_stacktrace_level=default:none", "--log_target=stderr", "--vklog=1",
	} {
		got := call{}.run(t, redirectcmd.IstioCommand, "-n", f)
		assert.Zero(t, got.code, "%s: %s", f, got.errOut)
		assert.Equal(t, plain.out, got.out, f)
		name, _, _ := strings.Cut(strings.Replace(f, "--nftables-", "--iptables-", 1), "=")
		assert.Contains(t, got.errOut, "warning: "+name+" has no effect: ")
	}
	for _, f := range []string{"--cni-mode=false", "--native-nftables=false", "--force-legacy-iptables=false", "--iptables-version=", "--log_as_json=false"} {
		assert.Equal(t, plain, call{}.run(t, redirectcmd.IstioCommand, "-n", f), f)
	}
	unknown := call{}.run(t, "apply", "--cni-mode", "--dry-run")
	assert.Equal(t, 2, unknown.code, "apply has flags of its own")
}

// TestIstioLogsJSON: all that is said is lines of JSON, mistakes too.
func TestIstioLogsJSON(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"-n", "--cni-mode"}, {"-b", "x"}} {
		got := call{}.run(t, append([]string{redirectcmd.IstioCommand, "--log_as_json"}, args...)...)
		var levels []string
		for line := range strings.Lines(got.out + got.errOut) {
			var o struct{ Level, Time, Msg string }
			require.NoError(t, json.Unmarshal([]byte(line), &o), line)
			assert.NotEmpty(t, o.Time)
			assert.NotEmpty(t, o.Msg)
			levels = append(levels, o.Level)
		}
		if got.code == 0 {
			assert.Contains(t, levels, "info")
			assert.Contains(t, levels, "warn")
		} else {
			assert.Contains(t, levels, "error")
		}
	}
}
